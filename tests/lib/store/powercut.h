/* The possible states of a disk after a power cut.
 *
 * In programs that link with the library `powercut` (tests/CMakeLists.txt), the calls that change files pass through
 * this module. It records their changes below one folder. Afterwards powercut_image writes a folder that such a disk
 * may hold, for any instant.
 *
 * POSIX promises only this:
 * - Bytes and length of a file are safe after its fsync. Before, each block may be old, new, or zeros where the file
 *   became longer. The length is any that the file had since the last fsync.
 * - Names in a folder are safe after the fsync of the folder, independent of the files. Before, a prefix of the
 *   changes may be on the disk (file systems keep their order within a folder). Each change is atomic: a rename is
 *   in effect or not.
 *
 * Pillai et al., "All file systems are not created equal" (OSDI 2014), test programs in the same way.
 *
 * Calls may come from several threads. No real fsync happens, so that tests are fast on any disk. */
#ifndef TESTS_LIB_POWERCUT_H
#define TESTS_LIB_POWERCUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Record the changes below `root` from here on; its present contents are safe. One recording at a time. */
void powercut_begin(const char *root);
/* Return the number of changes since then, up to powercut_end. */
size_t powercut_changes(void);
/* Call number `call` (from 0) of the following calls that change or fsync a file fails with EIO. A failing write
 * writes its first half. The other calls succeed. */
void powercut_fail(size_t call);
/* Return whether that call was reached. */
bool powercut_failed(void);
/* Return whether change i is an fsync. */
bool powercut_syncs(size_t i);
/* Stop recording; the changes stay until powercut_free. */
void powercut_end(void);
void powercut_free(void);

/* The unsafe changes that the disk keeps; POWERCUT_RANDOM and higher numbers choose at random, differently for each
 * number. */
enum {
    POWERCUT_NOTHING,
    POWERCUT_EVERYTHING,
    POWERCUT_NAMES,   /* names without bytes */
    POWERCUT_BYTES,   /* bytes without names */
    POWERCUT_LENGTHS, /* names and lengths, with zeros for bytes */
    POWERCUT_RANDOM,
};

/* Create `to` as the disk at `instant` (0 ... powercut_changes()): the power failed after that many changes. */
void powercut_image(size_t instant, uint64_t draw, const char *to);

#endif
