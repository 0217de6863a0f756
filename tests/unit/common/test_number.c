/* Numbers as text: valid and invalid ones. */

#include "common/base/number.h"
#include "tests/lib/test.h"

TEST(test_whole_numbers_are_parsed_exactly)
{
    static const char *const none[] = {"", "-1", "+1", " 1", "1 ", "1x", "0x1", "1.0", "18446744073709551616"};
    uint64_t n = 7;
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) assert_false(number_whole(none[i], &n));
    assert_int_equal(n, 7);
    assert_true(number_whole("18446744073709551615", &n) && n == UINT64_MAX);
    assert_true(number_whole("0010", &n) && n == 10);
}

TEST(test_real_numbers_are_parsed_exactly)
{
    char out[NUMBER_REAL];
    assert_string_equal(number_real_text(0.1, out), "0.1");
    assert_string_equal(number_real_text(-2, out), "-2");
    assert_string_equal(number_real_text(0.1 + 0.2, out), "0.30000000000000004");
}

TEST(test_hex_is_parsed_exactly)
{
    static const uint8_t bytes[3] = {0x00, 0xfe, 0xa0};
    static const char *const none[] = {"", "00", "00fea", "00feag", "0 fea0", "00+ea0", "0x0fea"};
    char out[7];
    uint8_t back[3];
    assert_string_equal(number_hex_text(bytes, 3, out), "00fea0");
    assert_true(number_hex(out, back, 3));
    assert_memory_equal(back, bytes, 3);
    assert_true(number_hex("00FEa0 and more", back, 3));
    assert_memory_equal(back, bytes, 3);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) assert_false(number_hex(none[i], back, 3));
}

TEST_MAIN(NULL, NULL)
