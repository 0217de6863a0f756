#include "gpu/plugin.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/cuda_plugin.h"

enum { PATH_BYTES = 4096 };

/* The plugin is never unloaded, because the CUDA runtime does not support it. A failure to load is kept, too. */
static struct {
    pthread_mutex_t lock;
    const struct cuda_plugin *plugin;
    struct err failure;
} cuda = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ATOLL_CUDA_PLUGIN, or atoll_cuda.so beside the running program (a build) or in ../lib/atoll (an installation). */
static enum status plugin_path(char *path, size_t size, struct err *err)
{
    const char *set = getenv("ATOLL_CUDA_PLUGIN");
    ssize_t n = 0;
    if (set && *set) return snprintf(path, size, "%s", set) < (int)size ? STATUS_OK : STATUS_LIMIT;
    n = readlink("/proc/self/exe", path, size - 1);
    if (n <= 0)
        return err_set(err, STATUS_UNSUPPORTED,
                       "CUDA: cannot find the folder of this program: set "
                       "ATOLL_CUDA_PLUGIN to the path of atoll_cuda.so");
    path[n] = '\0';
    size_t folder = (size_t)(strrchr(path, '/') + 1 - path);
    static const char *const names[] = {"atoll_cuda.so", "../lib/atoll/atoll_cuda.so", "atoll_cuda.so"};
    for (int i = 0; i < 3; i++) { /* the last one is for the error */
        if (snprintf(path + folder, size - folder, "%s", names[i]) >= (int)(size - folder))
            return err_set(err, STATUS_LIMIT, "CUDA: the path of this program is too long");
        if (access(path, R_OK) == 0) break;
    }
    return STATUS_OK;
}

/* True if the driver's library is there, which the plugin needs. A plugin named by ATOLL_CUDA_PLUGIN may work without
 * it. */
static bool has_driver(void)
{
    const char *set = getenv("ATOLL_CUDA_PLUGIN");
    if (set && *set) return true;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (driver) dlclose(driver);
    return driver != NULL;
}

bool plugin_cuda_likely(void)
{
    char path[PATH_BYTES];
    return has_driver() && plugin_path(path, sizeof path, NULL) == STATUS_OK && access(path, R_OK) == 0;
}

static enum status load(const struct cuda_plugin **out, struct err *err)
{
    char path[PATH_BYTES];
    TRY(plugin_path(path, sizeof path, err));
    if (access(path, R_OK) != 0)
        return err_set(err, STATUS_UNSUPPORTED,
                       "CUDA: no %s: this build has no CUDA back end; install the CUDA "
                       "toolkit and build again",
                       path);
    if (!has_driver())
        return err_set(err, STATUS_UNSUPPORTED,
                       "CUDA: no NVIDIA driver on this machine (libcuda.so.1 is missing): "
                       "install one");
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!object) { /* dlerror names the missing file or library, for example libcublasLt.so.13 */
        const char *why = dlerror();
        return err_set(err, STATUS_UNSUPPORTED,
                       "CUDA: %s cannot be loaded: %.280s; add its folder to "
                       "LD_LIBRARY_PATH (the CUDA toolkit of the build, or nvidia/.../lib of Python's "
                       "wheels)",
                       strrchr(path, '/') ? strrchr(path, '/') + 1 : path, why ? why : "unknown");
    }
    const struct cuda_plugin *plugin = dlsym(object, CUDA_PLUGIN_SYMBOL);
    const char *version = plugin && plugin->version ? plugin->version : "";
    if (!plugin || strcmp(version, ATOLL_VERSION) != 0 ||
        plugin->device_bytes != sizeof(struct device) + sizeof(struct device_ops))
        return err_set(err, STATUS_UNSUPPORTED,
                       "CUDA: %s and this program come from different builds: build both again", path);
    *out = plugin;
    return STATUS_OK;
}

/* The plugin, loaded on first use. NULL: err says why. */
static const struct cuda_plugin *loaded(struct err *err)
{
    pthread_mutex_lock(&cuda.lock);
    if (!cuda.plugin && cuda.failure.code == STATUS_OK) {
        enum status status = load(&cuda.plugin, &cuda.failure);
        if (status != STATUS_OK && cuda.failure.code == STATUS_OK)
            err_set(&cuda.failure, status, "CUDA: the plugin's path is too long");
    }
    const struct cuda_plugin *plugin = cuda.plugin;
    if (!plugin && err) *err = cuda.failure;
    pthread_mutex_unlock(&cuda.lock);
    return plugin;
}

int plugin_cuda_count(void)
{
    int count = 0;
    const struct cuda_plugin *plugin = plugin_cuda_likely() ? loaded(NULL) : NULL;
    return plugin && plugin->count(&count, NULL) == STATUS_OK ? count : 0;
}

enum status plugin_cuda_together(struct err *err)
{
    const struct cuda_plugin *plugin = loaded(err);
    return plugin ? plugin->together(err) : STATUS_UNSUPPORTED;
}

enum status plugin_cuda_open(int index, struct device **out, struct err *err)
{
    struct err why = {0};
    const struct cuda_plugin *plugin = loaded(&why);
    if (!plugin) return err_set(err, why.code, "%s", why.msg);
    enum status status = plugin->open(index, out, err);
    return status == STATUS_OK || !err ? status : err_prefix(err, "CUDA");
}
