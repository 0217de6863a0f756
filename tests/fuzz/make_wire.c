/* Seed inputs of the fuzzers of wire/, from the golden messages. */
#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "tests/fuzz/make_corpus.h"

static size_t read_hex(const char *folder, const char *name, uint8_t *out, size_t cap)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    if (!file) corpus_die(path);
    size_t n = 0;
    for (unsigned byte; n < cap && fscanf(file, "%2x", &byte) == 1; n++) out[n] = (uint8_t)byte;
    fclose(file);
    return n;
}

void corpus_make_wire(const char *golden)
{
    enum { HEADER = 16, VERSION_AT = 4, TYPE_AT = 5 };
    DIR *folder = opendir(golden);
    if (!folder) corpus_die(golden);
    for (struct dirent *entry; (entry = readdir(folder));) {
        char name[64];
        uint8_t bytes[4096];
        if (sscanf(entry->d_name, "%63[^.].hex", name) != 1 || !strstr(entry->d_name, ".hex")) continue;
        size_t n = read_hex(golden, entry->d_name, bytes, sizeof bytes);
        bool snapshot = !strncmp(name, "snapshot", 8), initial = !strncmp(name, "initial", 7);
        bool frozen = !strncmp(name, "frozen", 6), model = !strncmp(name, "model", 5);
        if (snapshot || initial || frozen || model || !strncmp(name, "update", 6)) {
            uint8_t kind = model ? 8 : frozen ? 4 : initial ? 2 : snapshot;
            corpus_put("object", name, &kind, 1, bytes, n);
        } else {
            uint8_t head[2] = {bytes[TYPE_AT], bytes[VERSION_AT]};
            corpus_put("frame", name, "", 0, bytes, n);
            corpus_put("msg", name, head, sizeof head, bytes + HEADER, n - HEADER);
        }
    }
    closedir(folder);
}
