/* Simulates a power cut. Preloaded into a program, it notes what would be on the disk if the power went now:
 *
 *   POWER_ROOT  the folder that is watched, without a link in its path
 *   POWER_DISK  a folder outside of it, where the notes are kept
 *   POWER_CUT   the power goes just before this call, from 1; never if it is not set
 *
 * A file's content lasts once it is synced (fsync, fdatasync); the names in a directory last once the directory is synced. At each
 * sync a copy goes to POWER_DISK: KEY is the content of a file, KEY.names the names of a directory with their keys. A key is the
 * number of the inode and the time of its birth, because numbers are used again. POWER_DISK/calls counts the calls that change
 * something, of all processes together; the cut is SIGKILL. power.rs makes of the copies what a machine finds when it starts again.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

/* The system's own functions, past this file's. */
static int raw_open(const char *path, int flags, int mode) { return syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, mode); }
static ssize_t raw_write(int fd, const void *data, size_t size) { return syscall(SYS_write, fd, data, size); }
static int raw_rename(const char *from, const char *to) { return syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0); }

static const char *root(void) {
    static const char *path;
    if (!path) path = getenv("POWER_ROOT");
    return path && *path ? path : NULL;
}

static int is_below(const char *path) {
    size_t size = root() ? strlen(root()) : 0;
    return size && !strncmp(path, root(), size) && (path[size] == '/' || !path[size]);
}

static int fd_is_watched(int fd) {
    char link[64], path[PATH_MAX];
    if (!root()) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size <= 0) return 0;
    path[size] = 0;
    return is_below(path);
}

static int path_is_watched(int at, const char *path) {
    char whole[PATH_MAX];
    if (!root() || !path) return 0;
    if (path[0] == '/') return is_below(path);
    if (at != AT_FDCWD) return fd_is_watched(at);
    return getcwd(whole, sizeof whole) && is_below(whole);
}

static void fail(const char *what) {
    char text[256];
    int size = snprintf(text, sizeof text, "power_cut: %s: %s\n", what, strerror(errno));
    raw_write(2, text, size);
    abort();
}

/* Counts a call; the power goes before the one that was named. */
static void step(void) {
    int saved = errno;
    const char *disk = getenv("POWER_DISK"), *cut = getenv("POWER_CUT");
    char path[PATH_MAX], text[32] = "";
    snprintf(path, sizeof path, "%s/calls", disk);
    int fd = raw_open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0) fail(path);
    while (flock(fd, LOCK_EX) && errno == EINTR) {}
    if (syscall(SYS_pread64, fd, text, sizeof text - 1, 0) < 0) fail(path);
    long count = atol(text) + 1;
    if (cut && *cut && count >= atol(cut)) {
        /* The lock is kept until the process is gone: no other call slips through. */
        kill(getpid(), SIGKILL);
        for (;;) pause();
    }
    int size = snprintf(text, sizeof text, "%ld", count);
    if (syscall(SYS_pwrite64, fd, text, size, 0) != size) fail(path);
    syscall(SYS_close, fd);
    errno = saved;
}

static int key_of(int at, const char *name, char *key, size_t size) {
    struct statx about;
    int flags = *name ? AT_SYMLINK_NOFOLLOW : AT_EMPTY_PATH;
    if (statx(at, name, flags, STATX_INO | STATX_BTIME, &about)) return -1;
    snprintf(key, size, "%llu-%lld-%u", (unsigned long long)about.stx_ino, (long long)about.stx_btime.tv_sec, about.stx_btime.tv_nsec);
    return 0;
}

/* A copy under a name of its own first, so that a cut in the middle leaves the last one. */
static int begin_note(char *draft, char *place, size_t size, const char *key, const char *ending) {
    static _Thread_local unsigned number;
    snprintf(place, size, "%s/%s%s", getenv("POWER_DISK"), key, ending);
    snprintf(draft, size, "%s/draft-%ld-%u", getenv("POWER_DISK"), (long)syscall(SYS_gettid), number++);
    int fd = raw_open(draft, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0) fail(draft);
    return fd;
}

static void end_note(int fd, const char *draft, const char *place) {
    syscall(SYS_close, fd);
    if (raw_rename(draft, place)) fail(place);
}

static void note_names(int fd, const char *key) {
    char draft[PATH_MAX], place[PATH_MAX], link[64], line[PATH_MAX + 128], below[128];
    int note = begin_note(draft, place, sizeof draft, key, ".names");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    DIR *directory = opendir(link);
    if (!directory) fail("opendir");
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        if (key_of(dirfd(directory), entry->d_name, below, sizeof below)) continue;
        int size = snprintf(line, sizeof line, "%s %d %s\n", below, entry->d_type == DT_DIR, entry->d_name);
        if (raw_write(note, line, size) != size) fail("names");
    }
    closedir(directory);
    end_note(note, draft, place);
}

static void note_content(int fd, const char *key) {
    char draft[PATH_MAX], place[PATH_MAX], block[1 << 16], link[64];
    int note = begin_note(draft, place, sizeof draft, key, "");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int from = raw_open(link, O_RDONLY, 0);
    if (from < 0) fail("read");
    for (ssize_t size; (size = syscall(SYS_read, from, block, sizeof block)) > 0;)
        if (raw_write(note, block, size) != size) fail("copy");
    syscall(SYS_close, from);
    end_note(note, draft, place);
}

/* What was synced lasts. */
static void note(int fd) {
    int saved = errno;
    char key[128];
    struct stat about;
    if (!fstat(fd, &about) && !key_of(fd, "", key, sizeof key)) {
        if (S_ISDIR(about.st_mode)) note_names(fd, key);
        else if (S_ISREG(about.st_mode)) note_content(fd, key);
    }
    errno = saved;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int fsync(int fd) {
    int watched = fd_is_watched(fd);
    if (watched) step();
    int done = REAL(fsync)(fd);
    if (watched && !done) note(fd);
    return done;
}

int fdatasync(int fd) {
    int watched = fd_is_watched(fd);
    if (watched) step();
    int done = REAL(fdatasync)(fd);
    if (watched && !done) note(fd);
    return done;
}

ssize_t write(int fd, const void *data, size_t size) {
    if (fd_is_watched(fd)) step();
    return REAL(write)(fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    if (fd_is_watched(fd)) step();
    return REAL(pwrite)(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    if (fd_is_watched(fd)) step();
    return REAL(pwrite64)(fd, data, size, at);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (fd_is_watched(fd)) step();
    return REAL(writev)(fd, parts, count);
}

int ftruncate(int fd, off_t size) {
    if (fd_is_watched(fd)) step();
    return REAL(ftruncate)(fd, size);
}

int ftruncate64(int fd, off64_t size) {
    if (fd_is_watched(fd)) step();
    return REAL(ftruncate64)(fd, size);
}

int rename(const char *from, const char *to) {
    if (path_is_watched(AT_FDCWD, to)) step();
    return REAL(rename)(from, to);
}

int unlink(const char *path) {
    if (path_is_watched(AT_FDCWD, path)) step();
    return REAL(unlink)(path);
}

int unlinkat(int at, const char *path, int flags) {
    if (path_is_watched(at, path)) step();
    return REAL(unlinkat)(at, path, flags);
}

int linkat(int at, const char *from, int to_at, const char *to, int flags) {
    if (path_is_watched(to_at, to)) step();
    return REAL(linkat)(at, from, to_at, to, flags);
}

int mkdir(const char *path, mode_t mode) {
    if (path_is_watched(AT_FDCWD, path)) step();
    return REAL(mkdir)(path, mode);
}

#define OPEN(name, ...)                                                     \
    int mode = 0;                                                           \
    if (flags & (O_CREAT | __O_TMPFILE)) {                                  \
        va_list more;                                                       \
        va_start(more, flags);                                              \
        mode = va_arg(more, int);                                           \
        va_end(more);                                                       \
    }                                                                       \
    if (flags & (O_CREAT | O_TRUNC) && path_is_watched(at, path)) step();   \
    return REAL(name)(__VA_ARGS__, path, flags, mode)

int openat(int at, const char *path, int flags, ...) { OPEN(openat, at); }
int openat64(int at, const char *path, int flags, ...) { OPEN(openat64, at); }
#undef OPEN
#define OPEN(name)                                                                \
    int mode = 0;                                                                 \
    if (flags & (O_CREAT | __O_TMPFILE)) {                                        \
        va_list more;                                                             \
        va_start(more, flags);                                                    \
        mode = va_arg(more, int);                                                 \
        va_end(more);                                                             \
    }                                                                             \
    if (flags & (O_CREAT | O_TRUNC) && path_is_watched(AT_FDCWD, path)) step();   \
    return REAL(name)(path, flags, mode)

int open(const char *path, int flags, ...) { OPEN(open); }
int open64(const char *path, int flags, ...) { OPEN(open64); }
