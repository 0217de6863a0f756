/* A disk with one bad sector, for LD_PRELOAD: reads of block BAD_SECTOR_BLOCK (4096 bytes each) of the file with inode
 * BAD_SECTOR_INODE fail with EIO. A read that begins before it is short. A map of the file raises SIGBUS there. Renames
 * and links keep the inode, and so the bad sector. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 4096 };

/* Bytes that a read of `size` bytes at `at` gives; -1: the sector is bad. */
static ssize_t readable(int fd, off_t at, size_t size)
{
    struct stat st;
    const char *inode = getenv("BAD_SECTOR_INODE"), *block = getenv("BAD_SECTOR_BLOCK");
    if (!inode || !block || fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_ino != strtoull(inode, NULL, 10))
        return (ssize_t)size;
    off_t bad = (off_t)strtoull(block, NULL, 10) * BLOCK;
    if (at >= bad + BLOCK || at + (off_t)size <= bad || at >= st.st_size) return (ssize_t)size;
    errno = EIO;
    return at < bad ? bad - at : -1;
}

ssize_t read(int fd, void *to, size_t size);
ssize_t read(int fd, void *to, size_t size)
{
    ssize_t (*real)(int, void *, size_t) = (ssize_t(*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
    off_t at = lseek(fd, 0, SEEK_CUR);
    ssize_t n = at < 0 ? (ssize_t)size : readable(fd, at, size);
    return n < 0 ? -1 : real(fd, to, (size_t)n);
}

ssize_t pread(int fd, void *to, size_t size, off_t at);
ssize_t pread(int fd, void *to, size_t size, off_t at)
{
    ssize_t (*real)(int, void *, size_t, off_t) = (ssize_t(*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread");
    ssize_t n = readable(fd, at, size);
    return n < 0 ? -1 : real(fd, to, (size_t)n, at);
}

ssize_t pread64(int fd, void *to, size_t size, off_t at);
ssize_t pread64(int fd, void *to, size_t size, off_t at)
{
    return pread(fd, to, size, at);
}

void *mmap(void *where, size_t size, int rights, int flags, int fd, off_t at)
{
    void *(*real)(void *, size_t, int, int, int, off_t) =
        (void *(*)(void *, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, "mmap");
    uint8_t *map = real(where, size, rights, flags, fd, at);
    if (map == MAP_FAILED || flags & MAP_ANONYMOUS) return map;
    for (size_t i = 0; i < size; i += BLOCK) {
        if (readable(fd, at + (off_t)i, 1) > 0) continue;
        int empty = memfd_create("bad sector", 0); /* a page behind the end of a file raises SIGBUS */
        real(map + i, BLOCK, PROT_READ, MAP_SHARED | MAP_FIXED, empty, 0);
        close(empty);
    }
    return map;
}

void *mmap64(void *where, size_t size, int rights, int flags, int fd, off_t at)
{
    return mmap(where, size, rights, flags, fd, at);
}
