# Planted bugs: values of outer steps that test_outer_report detects.
function(atoll_planted_report name source from to)
    atoll_planted_bug(report ${name} test_outer_report ${source} "${from}" "${to}")
endfunction()

atoll_planted_report(sums_depend_on_threads coordinator/outer/outer_step.c
    "if (stop > cell_end) stop = cell_end;" "(void)cell_end;")
atoll_planted_report(direction_of_momentum_ignored coordinator/outer/outer_step.c
    "sums->vd += outer_dot(v, d, in->n);" "sums->vd += outer_dot(d, d, in->n);")
atoll_planted_report(gain_without_square_of_momentum coordinator/outer/outer_report.c
    "1 + mu + mu * mu * sums->vd / sums->dd" "1 + mu + mu * sums->vd / sums->dd")
atoll_planted_report(noise_of_infinite_batch coordinator/outer/outer_report.c
    "(1 / sums->small - 1 / sums->big)" "(1 / sums->small)")
atoll_planted_report(arithmetic_mean_of_tokens coordinator/outer/outer_report.c
    "sums->small = n / sums->small;" "sums->small = sums->big / n;")

atoll_planted_test(report)
