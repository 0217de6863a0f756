/* Links as text: each word, the canonical text, lists for workers, and one clear line for each kind of mistake. */

#include "common/config/link_spec.h"
#include "tests/lib/test.h"

static struct link_spec spec;
static struct err err;
static char text[LINK_SPEC_MAX];

static void assert_prints(const char *given, const char *canonical)
{
    assert_int_equal(link_spec_parse(&spec, given, &err), STATUS_OK);
    assert_string_equal(link_spec_print(&spec, text), canonical);
    char again[LINK_SPEC_MAX];
    assert_int_equal(link_spec_parse(&spec, text, &err), STATUS_OK);
    assert_string_equal(link_spec_print(&spec, again), canonical);
}

static void assert_refused(const char *given, const char *part)
{
    assert_int_equal(link_spec_parse(&spec, given, &err), STATUS_INVALID);
    if (!strstr(err.msg, part)) fail_msg("%s: %s", given, err.msg);
    assert_null(strchr(err.msg, '\n'));
}

TEST(test_each_word_sets_its_value)
{
    assert_int_equal(link_spec_parse(&spec, "up=20mbit, down=0.1gbit,rtt=50ms,jitter=5ms,outage=60s+10s", &err),
                     STATUS_OK);
    assert_true(spec.up_mbit == 20 && spec.down_mbit == 100);
    assert_true(spec.delay_ms == 25 && spec.jitter_ms == 5);
    assert_int_equal(spec.n_outages, 1);
    assert_true(spec.outages[0].start_s == 60 && spec.outages[0].seconds == 10);
    assert_false(link_spec_is_none(&spec));
    assert_int_equal(link_spec_parse(&spec, "100mbit", &err), STATUS_OK);
    assert_true(spec.up_mbit == 100 && spec.down_mbit == 100 && spec.delay_ms == 0);
    assert_int_equal(link_spec_parse(&spec, " none ", &err), STATUS_OK);
    assert_true(link_spec_is_none(&spec));
}

TEST(test_canonical_text)
{
    assert_prints("none", "none");
    assert_prints("rtt=0ms", "none");
    assert_prints("rtt=50ms,100mbit", "100mbit,rtt=50ms");
    assert_prints("up=512kbit,down=1gbit", "up=0.512mbit,down=1000mbit");
    assert_prints("down=3.3mbit", "down=3.3mbit");
    assert_prints("jitter=0.1s,rtt=1.5s", "rtt=1500ms,jitter=100ms");
    assert_prints("outage=60s+500ms,outage=1s+2s", "outage=1s+2s,outage=60s+0.5s");
}

TEST(test_longest_text_fits)
{
    size_t n = (size_t)snprintf(text, sizeof text, "up=123.456789012mbit,down=999999.999999999mbit,rtt=99999999.99s");
    assert_refused(text, "rtt=99999999.99s");
    n = (size_t)snprintf(text, sizeof text,
                         "up=123.456789mbit,down=999999.999999mbit,rtt=999999.999s,jitter=1.123456s");
    for (int i = 0; i < LINK_OUTAGES_MAX; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, ",outage=%d.123456789s+100.123456789s", 500000 + 1000 * i);
    char given[LINK_SPEC_MAX];
    memcpy(given, text, sizeof given);
    assert_int_equal(link_spec_parse(&spec, given, &err), STATUS_OK);
    assert_non_null(strstr(link_spec_print(&spec, text), "outage=515000.123456789s+100.123456789s"));
    n = strlen(given);
    snprintf(given + n, sizeof given - n, ",outage=1s+1s");
    assert_refused(given, "one outage too many");
}

TEST(test_mistakes_are_named)
{
    assert_refused("", "empty word");
    assert_refused("100mbit,", "empty word");
    assert_refused("100", "\"100\" of the link is no rate");
    assert_refused("100tbit", "kbit, mbit or gbit");
    assert_refused("0mbit", "out of range");
    assert_refused("2000000gbit", "out of range");
    assert_refused("1.2.3mbit", "is no rate");
    assert_refused("-5mbit", "is unknown");
    assert_refused("nanmbit", "is unknown");
    assert_refused("up=-5mbit", "is no rate");
    assert_refused("up=1mbit,2mbit", "another word has set");
    assert_refused("rtt=5", "is no time");
    assert_refused("rtt=5ms,rtt=6ms", "comes twice");
    assert_refused("loss=1%", "\"loss=1%\" of the link is unknown");
    assert_refused("none,rtt=5ms", "\"none\" of the link is unknown");
    assert_refused("outage=60s", "is no outage");
    assert_refused("outage=60s+0s", "is no outage");
    assert_refused("outage=60+10", "is no outage");
    assert_refused("outage=60s+10s,outage=65s+1s", "overlaps");
    assert_refused("outage=65s+1s,outage=60s+10s", "overlaps");
    assert_refused("1mbit;2mbit", "\"1mbit;2mbit\"");
}

/* Spellings of other programs: the line says how to write them here. */
TEST(test_other_spellings_are_translated)
{
    static const char *const cases[][2] = {
        {"10mbit,50ms", "\"50ms\" of the link is a time without a name: write rtt=50ms, the delay of a round trip"},
        {"0.2 sec", "\"0.2 sec\" of the link is a time without a name: write rtt=0.2s, the delay of a round trip"},
        {"10mbps", "\"10mbps\" of the link is no rate: write 10mbit"},
        {"10 mbit", "\"10 mbit\" of the link is no rate: write 10mbit"},
        {"10Mbit/s", "\"10Mbit/s\" of the link is no rate: write 10mbit"},
        {"up=1Gbps", "\"up=1Gbps\" of the link is no rate: write up=1gbit"},
        {"100", "\"100\" of the link is no rate: write 100mbit"},
        {"10mb", "\"10mb\" of the link is no rate: write 10mbit if it counts bits, 80mbit if it counts bytes"},
        {"down=1.5MB/s", "\"down=1.5MB/s\" of the link is no rate: write down=1.5mbit if it counts bits, "
                         "down=12mbit if it counts bytes"},
        {"delay=50ms", "\"delay=50ms\" of the link is unknown: write rtt=50ms, the delay of a round trip"},
        {"Latency=50 ms", "\"Latency=50 ms\" of the link is unknown: write rtt=50ms, the delay of a round trip"},
        {"RTT=50ms", "\"RTT=50ms\" of the link is unknown: write rtt=50ms, the delay of a round trip"},
        {"rtt=50", "\"rtt=50\" of the link is no time: write rtt=50ms"},
        {"rtt=2seconds", "\"rtt=2seconds\" of the link is no time: write rtt=2s"},
        {"bandwidth=10mbit", "\"bandwidth=10mbit\" of the link is unknown: write 10mbit"},
        {"download=20mbit", "\"download=20mbit\" of the link is unknown: write down=20mbit"},
        {"loss=1%", "\"loss=1%\" of the link is unknown: packet loss is not modelled"},
        {"delay=soon",
         "\"delay=soon\" of the link is unknown: use 100mbit, up=, down=, rtt=, jitter=, outage= or none"},
        {"rtt=2000000s", "\"rtt=2000000s\" of the link is no time: it is above 1000000s"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(link_spec_parse(&spec, cases[i][0], &err), STATUS_INVALID);
        assert_string_equal(err.msg, cases[i][1]);
    }
}

TEST(test_lists)
{
    struct link_spec specs[3];
    assert_int_equal(link_specs_parse(specs, 3, "10mbit", &err), STATUS_OK);
    for (int i = 0; i < 3; i++) assert_true(specs[i].up_mbit == 10);
    assert_int_equal(link_specs_parse(specs, 3, "10mbit; none ;rtt=5ms,up=1mbit", &err), STATUS_OK);
    assert_true(specs[0].up_mbit == 10 && link_spec_is_none(&specs[1]) && specs[2].up_mbit == 1);
    assert_int_equal(link_specs_parse(specs, 3, "10mbit;none", &err), STATUS_INVALID);
    assert_string_equal(err.msg, "2 links for 3 workers: give one link for all, or one each, joined by ;");
    assert_int_equal(link_specs_parse(specs, 2, "10mbit;", &err), STATUS_INVALID);
    assert_non_null(strstr(err.msg, "empty word"));
}

TEST_MAIN(NULL, NULL)
