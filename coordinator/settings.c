#include "coordinator/settings.h"

#include "compress/codec.h"

static enum status read_all(struct config *config, struct config_sources *sources, const char *path,
                            const struct options *options, struct err *err)
{
    config_defaults(config, sources);
    if (path) TRY(config_load(config, sources, path, err));
    TRY(config_env(config, sources, err));
    for (size_t i = 0; i < options->n_settings; i++)
        TRY(config_set(config, sources, options->settings[i], CONFIG_FLAG, err));
    TRY(config_resolve(config, sources, err));
    if (codec_spec_check(config->codec.up, err) != STATUS_OK) return err_prefix(err, "codec.up");
    char down[CONFIG_SPEC_MAX];
    config_down_spec(config, down);
    if (down[0] && codec_spec_check(down, err) != STATUS_OK) return err_prefix(err, "codec.down");
    return STATUS_OK;
}

enum status settings_read(struct config *config, struct config_sources *sources, const char *path,
                          const struct options *options, struct err *err)
{
    return read_all(config, sources, path, options, err) == STATUS_OK ? STATUS_OK : (err->code = STATUS_INVALID);
}
