#include "common/os/columns.h"

#include <assert.h>
#include <ctype.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "common/base/number.h"

enum { COLUMNS_LIMIT = 10000 };

unsigned columns_of(int fd)
{
    struct winsize size = {0};
    const char *text = getenv("COLUMNS");
    if (!isatty(fd)) return 0;
    uint64_t width;
    if (text && number_whole(text, &width) && width && width < COLUMNS_LIMIT) return (unsigned)width;
    return ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

size_t columns_fit(const char *line, size_t size, unsigned width)
{
    size_t fits = 0; /* end of the last field that fits */
    while (size && line[size - 1] == ' ') size--;
    if (!width || size <= width) return size;
    for (size_t i = 0; i + 2 < size && (i <= width || !fits); i++) {
        size_t next = i;
        while (next < size && line[next] == ' ') next++;
        if (next < i + 2) continue;
        if (next < size && isalpha((unsigned char)line[next]) && (i <= width || !fits)) fits = i;
        i = next - 1;
    }
    assert(fits <= size);
    return fits ? fits : size;
}
