/* Who may see the page: hosts, tokens, and the token's file. */
#include <sys/stat.h>

#include "cli/page/page_access.h"
#include "common/base/log.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"

#define TOKEN "0123456789abcdef"

static enum page_verdict judge(const char *token, const struct page_request request)
{
    struct page_access access = {.host = "box.example"};
    snprintf(access.token, sizeof access.token, "%s", token);
    return page_access_judge(&access, &request);
}

TEST(test_names_of_this_machine)
{
    static const char *const good[] = {"localhost", "LOCALHOST:9600", "a.localhost:1",   "127.0.0.1:9600",
                                       "127.1.2.3", "[::1]:9600",     "box.example:9600"};
    static const char *const bad[] = {
        "",           "evil.example:9600", "127.0.0.1.evil.example", "localhost.evil.example", "[::2]:9600", "10.0.0.1",
        "localhostx", "127.evil"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_int_equal(judge("", (struct page_request){.host = good[i]}), PAGE_ADMIT);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(judge("", (struct page_request){.host = bad[i]}), PAGE_WRONG_HOST);
}

TEST(test_token_in_each_place)
{
    const char *evil = "evil.example"; /* with a token any name is right */
    assert_int_equal(judge(TOKEN, (struct page_request){.host = evil}), PAGE_NEEDS_TOKEN);
    assert_int_equal(judge(TOKEN, (struct page_request){.host = evil, .authorization = "Bearer " TOKEN}), PAGE_ADMIT);
    assert_int_equal(judge(TOKEN, (struct page_request){.host = evil, .authorization = "bearer  " TOKEN}), PAGE_ADMIT);
    assert_int_equal(judge(TOKEN, (struct page_request){.host = evil, .cookie = TOKEN}), PAGE_ADMIT);
    static const char *const wrong[] = {"",
                                        "Bearer",
                                        "Bearer ",
                                        "Bearer " TOKEN "0",
                                        "Bearer 0123456789abcde",
                                        TOKEN,
                                        "Basic " TOKEN,
                                        "Bearer 0123456789abcdee"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(judge(TOKEN, (struct page_request){.authorization = wrong[i]}), PAGE_NEEDS_TOKEN);
}

TEST(test_without_a_token_none_is_right)
{
    struct page_access access = {.token = ""};
    assert_false(page_access_knows(&access, ""));
    assert_false(page_access_knows(&access, NULL));
}

TEST_WITH(test_token_file_is_made, tmpdir_make, tmpdir_remove)
{
    struct page_access first = {0}, second = {0};
    struct err err = {0};
    struct stat st;
    const char *path = tmpdir_path("page-token");
    assert_int_equal(page_access_read(&first, path, &err), STATUS_OK);
    assert_int_equal(strlen(first.token), 32);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(page_access_read(&second, path, &err), STATUS_OK);
    assert_string_equal(first.token, second.token);
}

TEST_WITH(test_token_files_that_are_refused, tmpdir_make, tmpdir_remove)
{
    static const char *const bad[] = {"", "\n", "short\n", "0123456789abcde;\n", "0123456789 abcdef\n"};
    struct page_access access = {0};
    struct err err = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tmpdir_put("token", bad[i]);
        assert_int_equal(page_access_read(&access, tmpdir_path("token"), &err), STATUS_INVALID);
        assert_non_null(strstr(err.msg, "holds no token"));
        assert_string_equal(access.token, "");
    }
}

TEST_MAIN(NULL, NULL)
