//! Which sentences say most of what a page says. Sentences that share rare words support each other (TextRank over tf-idf),
//! neighbours' sentences included; where a sentence stands and how long it is weigh in.

use std::collections::HashMap;

use super::sentences::Sentence;
use super::words::words;

/// Of a page's sentences the first so many are compared; the work grows with their square.
const SENTENCES_MAX: usize = 400;

const DAMPING: f64 = 0.85;
const ROUNDS: usize = 30;

/// Two sentences this alike say the same.
const SAME: f64 = 0.55;

/// The weights of a sentence's words, sorted by word; its length is 1 unless it is empty.
type Vector = Vec<(u32, f64)>;

/// Everything that is known about some sentences; those of the page come first.
pub(super) struct Ranking {
    vectors: Vec<Vector>,
    /// Of the page's sentences.
    pub(super) scores: Vec<f64>,
}

impl Ranking {
    /// Ranks the sentences of a page among those of its neighbours.
    pub(super) fn new(page: &[Sentence], neighbours: &[Sentence]) -> Ranking {
        let page = &page[..page.len().min(SENTENCES_MAX)];
        let all: Vec<&Sentence> = page.iter().chain(neighbours.iter().take(SENTENCES_MAX)).collect();
        let vectors = vectors(&all);
        let central = centrality(&vectors);
        let scores =
            page.iter().enumerate().map(|(at, sentence)| central[at] * weight(sentence, at, page.len())).collect();
        Ranking { vectors, scores }
    }

    /// How many sentences it knows, the neighbours' included.
    pub(super) fn len(&self) -> usize {
        self.vectors.len()
    }

    /// How alike two sentences are, from 0 to 1. Numbers count through the page's sentences, then the neighbours'.
    pub(super) fn likeness(&self, one: usize, other: usize) -> f64 {
        cosine(&self.vectors[one], &self.vectors[other])
    }

    /// The best of the page's sentences that do not repeat each other, at most `count`, in the order of the text.
    pub(super) fn best(&self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.scores.len()).filter(|&at| self.scores[at] > 0.0).collect();
        // Equal scores in the order of the text, so that the same page always gives the same answer.
        order.sort_by(|&a, &b| self.scores[b].total_cmp(&self.scores[a]).then(a.cmp(&b)));
        let mut chosen: Vec<usize> = Vec::new();
        for at in order {
            if chosen.len() == count {
                break;
            }
            if chosen.iter().all(|&other| self.likeness(at, other) < SAME) {
                chosen.push(at);
            }
        }
        chosen.sort_unstable();
        chosen
    }
}

fn vectors(sentences: &[&Sentence]) -> Vec<Vector> {
    let mut ids: HashMap<String, u32> = HashMap::new();
    let mut found_in: Vec<u32> = Vec::new();
    let counts: Vec<Vec<(u32, f64)>> = sentences
        .iter()
        .map(|sentence| {
            let mut ordered: Vec<(u32, f64)> = Vec::new();
            for word in words(&sentence.text).into_iter().filter(|word| !word.small) {
                let next = ids.len() as u32;
                let id = *ids.entry(word.stem).or_insert(next);
                match ordered.iter_mut().find(|(known, _)| *known == id) {
                    Some((_, count)) => *count += 1.0,
                    None => ordered.push((id, 1.0)),
                }
            }
            found_in.resize(ids.len(), 0);
            for &(id, _) in &ordered {
                found_in[id as usize] += 1;
            }
            ordered
        })
        .collect();
    let total = sentences.len() as f64;
    counts
        .into_iter()
        .map(|mut vector| {
            vector.sort_unstable_by_key(|&(id, _)| id);
            for (id, weight) in &mut vector {
                *weight = (1.0 + weight.ln()) * (1.0 + total / f64::from(found_in[*id as usize])).ln();
            }
            let length = vector.iter().map(|(_, weight)| weight * weight).sum::<f64>().sqrt();
            if length > 0.0 {
                vector.iter_mut().for_each(|(_, weight)| *weight /= length);
            }
            vector
        })
        .collect()
}

fn cosine(one: &Vector, other: &Vector) -> f64 {
    let (mut a, mut b, mut sum) = (0, 0, 0.0);
    while let (Some(&(left, x)), Some(&(right, y))) = (one.get(a), other.get(b)) {
        match left.cmp(&right) {
            std::cmp::Ordering::Less => a += 1,
            std::cmp::Ordering::Greater => b += 1,
            std::cmp::Ordering::Equal => {
                sum += x * y;
                a += 1;
                b += 1;
            }
        }
    }
    sum
}

/// TextRank: a sentence is as important as the sentences that are like it, by how like it they are.
fn centrality(vectors: &[Vector]) -> Vec<f64> {
    let count = vectors.len();
    let mut edges: Vec<Vec<(usize, f64)>> = vec![Vec::new(); count];
    for one in 0..count {
        for other in one + 1..count {
            let likeness = cosine(&vectors[one], &vectors[other]);
            if likeness > 0.0 {
                edges[one].push((other, likeness));
                edges[other].push((one, likeness));
            }
        }
    }
    let strength: Vec<f64> = edges.iter().map(|edges| edges.iter().map(|(_, weight)| weight).sum()).collect();
    let mut ranks = vec![1.0; count];
    for _ in 0..ROUNDS {
        ranks = (0..count)
            .map(|at| {
                let flow: f64 = edges[at].iter().map(|&(from, weight)| ranks[from] * weight / strength[from]).sum();
                1.0 - DAMPING + DAMPING * flow
            })
            .collect();
    }
    ranks
}

/// First sentences introduce; very short ones say little, very long ones are tables as a rule; titles are no sentences.
fn weight(sentence: &Sentence, at: usize, count: usize) -> f64 {
    if sentence.heading {
        return 0.0;
    }
    let place = 1.0 + 0.35 * (-(at as f64) * 6.0 / count.max(6) as f64).exp();
    let telling = words(&sentence.text).iter().filter(|word| !word.small).count() as f64;
    let length = (telling / 6.0).min(1.0) * if telling > 45.0 { 45.0 / telling } else { 1.0 };
    place * length
}

#[cfg(test)]
mod tests {
    use super::super::sentences::split;
    use super::*;

    #[test]
    fn a_sentence_that_others_support_is_better_than_a_stray_one() {
        let page = split(
            "Tides are the rise and fall of the sea caused by the gravity of the moon. Nobody ordered soup for lunch \
             yesterday afternoon anyway. The gravity of the moon pulls the sea into two bulges. The rise of the sea follows \
             the moon around the earth.",
        );
        let best = Ranking::new(&page, &[]).best(2);
        assert_eq!(best.len(), 2);
        assert!(!best.contains(&1), "{best:?}");
    }

    #[test]
    fn a_sentence_that_repeats_another_is_not_chosen_again() {
        let page = split(
            "The moon pulls the sea twice a day. The moon pulls the sea twice a day. Rivers carry sand to the coast.",
        );
        let best = Ranking::new(&page, &[]).best(3);
        assert!(!(best.contains(&0) && best.contains(&1)), "{best:?}");
    }

    #[test]
    fn neighbours_lift_what_they_speak_of() {
        let page =
            split("Copper conducts heat and current well everywhere. Tides follow the moon across oceans slowly.");
        let neighbours = split("The moon causes tides. Oceans feel the moon. Tides come twice because of the moon.");
        assert_eq!(Ranking::new(&page, &neighbours).best(1), [1]);
    }

    #[test]
    fn nothing_makes_no_ranking() {
        assert!(Ranking::new(&[], &[]).best(3).is_empty());
        assert!(Ranking::new(&split("Only a title"), &[]).best(3).is_empty());
    }
}
