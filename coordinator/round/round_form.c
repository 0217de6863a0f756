#include "coordinator/round/round_form.h"

#include "common/config/codec_choice.h"
#include "common/config/codec_spec.h"
#include "wire/msg.h"
#include "wire/object.h"

uint8_t round_delta_form(const struct config *config)
{
    if (config->train.method == METHOD_DDP) return DELTA_GRADIENT;
    bool barrier = config->train.method != METHOD_ASYNC;
    return barrier && !config_up_mixed(config) && codec_spec_lossless(config->codec.up) ? DELTA_PARAMETERS
                                                                                        : DELTA_PSEUDO_GRADIENT;
}

uint8_t round_update_form(const struct config *config)
{
    return config_update_replaces(config) ? UPDATE_PARAMETERS : UPDATE_INCREMENT;
}
