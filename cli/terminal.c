#include "cli/terminal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/columns.h"

static const char round_field[] = "round ";

static char bar[512];
static size_t bar_size;

bool terminal_interactive(void)
{
    const char *term = getenv("TERM");
    return isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0;
}

static void bar_draw(void)
{
    if (bar_size) printf("%.*s\r", (int)bar_size, bar);
    fflush(stdout);
}

static void bar_wipe(void)
{
    if (bar_size) printf("\033[K");
}

void terminal_line(const char *prefix, const char *text, size_t size)
{
    unsigned width = columns_of(STDOUT_FILENO), used = (unsigned)strlen(prefix);
    bool fields = size >= sizeof round_field && !memcmp(text, round_field, sizeof round_field - 1);
    if (fields && width) size = columns_fit(text, size, width > used ? width - used : 1);
    bar_wipe();
    printf("%s%.*s\n", prefix, (int)size, text);
    bar_draw();
}

void terminal_bar(const char *text, size_t size)
{
    if (!terminal_interactive()) return;
    bar_wipe();
    unsigned width = columns_of(STDOUT_FILENO);
    bar_size = size < sizeof bar ? size : sizeof bar;
    if (width && bar_size >= width) bar_size = width - 1; /* a bar that wraps cannot be wiped */
    memcpy(bar, text, bar_size);
    bar_draw();
}

void terminal_bar_clear(void)
{
    bar_wipe();
    bar_size = 0;
    fflush(stdout);
}
