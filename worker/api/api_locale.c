/* The locale of a call: the library's own work needs the C locale, and the caller's functions get the caller's. */
#include "common/base/thread.h"
#include "worker/api/api_impl.h"

static _Thread_local locale_t caller; /* of the call in this thread; NULL: none, or a thread of the library */

struct api_locale api_locale_enter(void)
{
    struct api_locale l = {.before = uselocale(thread_c_locale()), .caller = caller};
    if (!caller) caller = l.before;
    return l;
}

struct api_locale api_locale_call_back(void)
{
    return (struct api_locale){.before = uselocale(caller ? caller : LC_GLOBAL_LOCALE), .caller = caller};
}

void api_locale_restore(struct api_locale *l)
{
    uselocale(l->before);
    caller = l->caller;
}
