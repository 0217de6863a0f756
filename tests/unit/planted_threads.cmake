# Planted bugs: what several threads could make of a delta, and one would not.

atoll_planted_bug(threads plain_values_at_the_start test_codec_threads compress/codec_half.c
    "dst + 2 * part.from);                                                    " "dst);")
atoll_planted_bug(threads scales_at_the_start test_codec_threads compress/codec_int8.c
    "dst + 4 * (part.from / block), dst" "dst, dst")
atoll_planted_bug(threads heads_of_another_run test_codec_threads compress/codec_lowbit.c
    "dst + s.heads + s.format->head * (run->at + into / s.block)" "dst + s.heads + s.format->head * (into / s.block)")
atoll_planted_bug(threads bad_number_of_the_part test_codec_threads compress/codec.c
    "= part.from + bad;" "= bad;")
atoll_planted_bug(threads last_of_the_bad_numbers test_codec_threads compress/codec.c
    "if (bad_index) *bad_index = e.bad[i];\n        return STATUS_NONFINITE;"
    "if (bad_index) *bad_index = e.bad[i];\n        if (i + 1 == threads || e.bad[i + 1] == v->n) return STATUS_NONFINITE;")
atoll_planted_bug(threads rest_of_the_first_parts test_codec_threads compress/feedback.c
    "memcpy(residual + part.from, job->x + part.from," "memcpy(residual + part.from, job->x,")
atoll_planted_bug(threads residual_added_from_the_start test_codec_threads compress/feedback.c
    "x[i] + decay * residual[i];" "x[i] + decay * residual[i - part.from];")

atoll_planted_bug(threads sum_by_shares test_delta_floats common/sum_squares.c
    "sums->of[at / SUM_BLOCK] =" "sums->of[thread] =")
atoll_planted_bug(threads sum_of_the_first_blocks test_delta_floats common/sum_squares.c
    "sums->from + at, n);" "at, n);")
atoll_planted_bug(threads squares_of_the_first_block test_delta_floats common/sum_squares.c
    "*(const float *const *)ctx + at;" "*(const float *const *)ctx;")
atoll_planted_bug(threads difference_to_the_first_block test_delta_floats worker/delta_floats.c
    "*values = d->values + at;" "*values = d->values;")
atoll_planted_bug(threads nan_in_another_share test_delta_floats worker/delta_floats.c
    "bad = bad || l.bad[i];" "bad = l.bad[0];")

atoll_planted_test(threads)
