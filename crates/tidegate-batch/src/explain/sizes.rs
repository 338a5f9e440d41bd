//! How much at once, by how large a file is: small files are packed, large ones get fewer pages and fewer companions.

/// The class of a file, by its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Below 20 pages.
    Small,
    /// 20 to 100 pages.
    Medium,
    /// Above 100 pages.
    Large,
}

/// Shares of the files under way: five small ones, three medium ones or two large ones use all of them.
pub(super) const SHARES: usize = 30;

impl Size {
    /// The class of a file with so many pages.
    ///
    /// ```
    /// use tidegate_batch::Size;
    /// assert_eq!([19, 20, 100, 101].map(Size::of), [Size::Small, Size::Medium, Size::Medium, Size::Large]);
    /// ```
    #[must_use]
    pub fn of(pages: u32) -> Size {
        match pages {
            0..20 => Size::Small,
            20..=100 => Size::Medium,
            _ => Size::Large,
        }
    }

    /// How many of its pages are under way at once.
    #[must_use]
    pub fn page_concurrency(self) -> u32 {
        match self {
            Size::Small => 50,
            Size::Medium => 30,
            Size::Large => 20,
        }
    }

    /// How many files of this class are under way at once.
    #[must_use]
    pub fn file_concurrency(self) -> u32 {
        match self {
            Size::Small => 5,
            Size::Medium => 3,
            Size::Large => 2,
        }
    }

    /// Its share of [`SHARES`].
    pub(super) fn share(self) -> usize {
        SHARES / self.file_concurrency() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_of_a_class_fit_as_it_allows() {
        for size in [Size::Small, Size::Medium, Size::Large] {
            assert_eq!(SHARES / size.share(), size.file_concurrency() as usize);
        }
    }
}
