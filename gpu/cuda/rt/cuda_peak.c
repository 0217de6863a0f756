#include "gpu/cuda/rt/cuda_peak.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* NVIDIA's data sheets, TFLOP/s without sparsity. The first line whose words occur in the name counts, so variants come
 * before their base model. 0: no figure is known for the variant. */
static const struct {
    const char *words;
    double tflops;
} peaks[] = {
    {"MIG", 0},           {"Laptop", 0},
    {"GB200", 2500},      {"B200", 2250},
    {"GH200", 989.4},     {"H200 NVL", 835.5},
    {"H200", 989.4},      {"H100 NVL", 835.5},
    {"H100 PCIe", 756},   {"H100", 989.4},
    {"H800 PCIe", 756},   {"H800", 989.4},
    {"H20", 148},         {"A100", 312},
    {"A800", 312},        {"A40", 149.7},
    {"A30", 165},         {"A10", 125},
    {"L40S", 362},        {"L40", 181},
    {"L4", 121},          {"RTX 6000 Ada", 364.2},
    {"RTX A6000", 154.8}, {"RTX 5090 D", 0},
    {"RTX 5090", 209.5},  {"RTX 4090 D", 0},
    {"RTX 4090", 165.2},  {"RTX 3090 Ti", 0},
    {"RTX 3090", 71},
};

static bool ends_word(char c)
{
    return c == '\0' || c == ' ' || c == '-';
}

static bool has_words(const char *name, const char *words)
{
    size_t n = strlen(words);
    for (const char *at = strstr(name, words); at; at = strstr(at + 1, words))
        if ((at == name || ends_word(at[-1])) && ends_word(at[n])) return true;
    return false;
}

double cuda_peak_bf16(const char *name)
{
    for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++)
        if (has_words(name, peaks[i].words)) return peaks[i].tflops * 1e12;
    return 0;
}
