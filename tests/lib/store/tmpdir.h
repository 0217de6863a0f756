/* A folder of one test's own, for what it keeps on a real file system: in memory, where there is a gigabyte of it, so
 * that nobody waits for a disk. */
#ifndef TESTS_TMPDIR_H
#define TESTS_TMPDIR_H

extern char tmpdir[32];

/* Set-up and teardown of cmocka, of a group or of each test. The folder goes with all that is in it; -1 when that
 * cannot be, or when memory of mem_alloc is left. */
int tmpdir_make(void **state);
int tmpdir_remove(void **state);
int tmpdir_remove_empty(void **state); /* the same, but nothing may have been left in it */

/* A folder in it goes, with all that is in it. */
void tmpdir_clear(const char *path);

/* The path of `name` in the folder, until three more were asked for. */
const char *tmpdir_path(const char *name);
/* A file of this text, in folders that are made. */
void tmpdir_put(const char *name, const char *text);
/* Remove a file that must be there. */
void tmpdir_take(const char *name);

#endif
