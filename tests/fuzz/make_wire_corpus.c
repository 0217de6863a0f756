/* Writes the seed inputs of the fuzzers of wire/ from the golden messages: make_wire_corpus tests/golden/protocol_v2
 * tests/fuzz/corpus. */
#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void die(const char *what)
{
    fprintf(stderr, "make_wire_corpus: %s\n", what);
    exit(1);
}

static void put(const char *root, const char *fuzzer, const char *name, const uint8_t *head, size_t head_size,
                const uint8_t *data, size_t size)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", root, fuzzer);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/%s/%s", root, fuzzer, name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(head, 1, head_size, file) != head_size || fwrite(data, 1, size, file) != size || fclose(file))
        die(path);
}

static size_t read_hex(const char *folder, const char *name, uint8_t *out, size_t cap)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    if (!file) die(path);
    size_t n = 0;
    for (unsigned byte; n < cap && fscanf(file, "%2x", &byte) == 1; n++) out[n] = (uint8_t)byte;
    fclose(file);
    return n;
}

int main(int argc, char **argv)
{
    enum { HEADER = 16, VERSION_AT = 4, TYPE_AT = 5 };
    if (argc != 3) die("usage: make_wire_corpus GOLDEN CORPUS");
    DIR *folder = opendir(argv[1]);
    if (!folder) die(argv[1]);
    for (struct dirent *entry; (entry = readdir(folder));) {
        char name[64];
        uint8_t bytes[4096];
        if (sscanf(entry->d_name, "%63[^.].hex", name) != 1 || !strstr(entry->d_name, ".hex")) continue;
        size_t n = read_hex(argv[1], entry->d_name, bytes, sizeof bytes);
        bool snapshot = !strncmp(name, "snapshot", 8), initial = !strncmp(name, "initial", 7);
        if (snapshot || initial || !strncmp(name, "update", 6)) {
            uint8_t kind = initial ? 2 : snapshot;
            put(argv[2], "object", name, &kind, 1, bytes, n);
        } else {
            uint8_t head[2] = {bytes[TYPE_AT], bytes[VERSION_AT]};
            put(argv[2], "frame", name, NULL, 0, bytes, n);
            put(argv[2], "msg", name, head, sizeof head, bytes + HEADER, n - HEADER);
        }
    }
    closedir(folder);
    return 0;
}
