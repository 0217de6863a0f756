#include "common/base/edit_distance.h"

#include <assert.h>
#include <string.h>

int edit_distance(const char *a, const char *b)
{
    int row[EDIT_DISTANCE_MAX + 1]; /* row[j]: distance of the first i bytes of a and the first j of b */
    int na = (int)strnlen(a, EDIT_DISTANCE_MAX), nb = (int)strnlen(b, EDIT_DISTANCE_MAX);
    for (int j = 0; j <= nb; j++) row[j] = j;
    for (int i = 1; i <= na; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= nb; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    assert(row[nb] >= 0 && row[nb] <= (na > nb ? na : nb));
    return row[nb];
}
