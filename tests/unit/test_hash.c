/* Checksums: published check values, both CRC paths, continuation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "common/rng.h"

static void test_check_values(void **state)
{
    (void)state;
    uint8_t zeros[32] = {0}, ones[32];
    memset(ones, 0xff, sizeof ones);
    uint32_t (*const paths[])(uint32_t, const void *, size_t) = {crc32c, crc32c_portable};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(paths[i](0, "123456789", 9), 0xE3069283);
        assert_int_equal(paths[i](0, "", 0), 0);
        assert_int_equal(paths[i](0, zeros, 32), 0x8A9136AA); /* RFC 3720, B.4 */
        assert_int_equal(paths[i](0, ones, 32), 0x62A8AB43);
    }
}

static void test_paths_agree(void **state)
{
    (void)state;
    uint8_t data[300];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)rng_u64(1, RNG_TEST, i);
    for (size_t from = 0; from < 9; from++)
        for (size_t n = 0; n + from <= sizeof data; n++)
            assert_int_equal(crc32c(0, data + from, n), crc32c_portable(0, data + from, n));
    for (size_t cut = 0; cut <= sizeof data; cut++)
        assert_int_equal(crc32c(crc32c(0, data, cut), data + cut, sizeof data - cut), crc32c(0, data, sizeof data));
}

static void test_crc_sees_every_bit(void **state)
{
    (void)state;
    uint8_t data[64] = {0};
    uint32_t clean = crc32c(0, data, sizeof data);
    for (size_t bit = 0; bit < 8 * sizeof data; bit++) {
        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_not_equal(crc32c(0, data, sizeof data), clean);
        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

static void test_hash64(void **state)
{
    (void)state;
    assert_true(hash64("", 0) == 0x2d06800538d394c2u); /* XXH3, seed 0, empty input */
    assert_true(hash_mix(hash_mix(0, 1), 2) != hash_mix(hash_mix(0, 2), 1));
    assert_true(hash_mix(0, 0) != 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check_values),
        cmocka_unit_test(test_paths_agree),
        cmocka_unit_test(test_crc_sees_every_bit),
        cmocka_unit_test(test_hash64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
