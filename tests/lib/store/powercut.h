/* What a disk may hold after its power failed. In programs that link with the library `powercut` (tests/CMakeLists.txt)
 * the calls that change files come through here, and what they change below one folder is recorded. Any instant of that
 * can be looked at afterwards: powercut_image lays out a folder as a disk may have it that lost its power then.
 *
 * POSIX promises this and no more:
 * - bytes and length of a file are safe once it was fsynced. Before, each block may be the old one or the new one, or
 *   zeros where the file has become longer, and the length one that it had since;
 * - names in a folder are safe once the folder was fsynced, whatever became of the files. Before, some of the changes
 *   may have come to the disk, the first ones first (file systems keep them in order, within a folder), each whole: a
 *   rename is in effect or not.
 * Pillai et al., "All file systems are not created equal" (OSDI 2014), look at programs in the same way.
 *
 * Calls may come from several threads. Nothing is fsynced in truth: tests are quick on any disk. */
#ifndef TESTS_LIB_POWERCUT_H
#define TESTS_LIB_POWERCUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Record what becomes of `root` from here on; what is in it now is safe. One at a time. */
void powercut_begin(const char *root);
/* Changes since then, or until powercut_end. */
size_t powercut_changes(void);
/* Of the calls from now on that would change something, or make it safe, number `call` (from 0) fails with EIO, a write
 * when half of it is done. The others do what they are asked for. */
void powercut_fail(size_t call);
/* Whether that was reached. */
bool powercut_failed(void);
/* Whether change i made something safe. */
bool powercut_syncs(size_t i);
/* No more is recorded; what was recorded stays until powercut_free. */
void powercut_end(void);
void powercut_free(void);

/* What the disk has of what was not safe; from POWERCUT_RANDOM on something at random, another thing for each. */
enum {
    POWERCUT_NOTHING,
    POWERCUT_EVERYTHING,
    POWERCUT_NAMES,   /* without bytes */
    POWERCUT_BYTES,   /* without names */
    POWERCUT_LENGTHS, /* and names, with zeros for bytes */
    POWERCUT_RANDOM,
};

/* Instants are 0 ... powercut_changes(): the power failed when so many changes had been made. `to` is made. */
void powercut_image(size_t instant, uint64_t draw, const char *to);

#endif
