#include "coordinator/round/round_form.h"

#include "common/config/codec_choice.h"
#include "wire/msg.h"
#include "wire/object.h"

uint8_t round_delta_form(const struct config *config, bool mean)
{
    if (config->train.method == METHOD_DDP) return DELTA_GRADIENT;
    return config_delta_replaces(config, mean) ? DELTA_PARAMETERS : DELTA_PSEUDO_GRADIENT;
}

uint8_t round_update_form(const struct config *config, bool mean)
{
    return config_update_replaces(config, mean) ? UPDATE_PARAMETERS : UPDATE_INCREMENT;
}
