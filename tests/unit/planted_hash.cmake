# Planted bugs: a hash of theta that does not see everything, or depends on who makes it; a checksum of long data.

atoll_planted_bug(hash order_of_blocks test_hash common/hash.c
    "root = hash_mix(root, leaves.hash[i]);" "root ^= leaves.hash[i];")
atoll_planted_bug(hash last_block_left_out test_hash common/hash.c
    "i * HASH_BLOCK < leaves.n" "(i + 1) * HASH_BLOCK <= leaves.n")
atoll_planted_bug(hash half_of_a_block test_hash common/hash.c
    "n * sizeof *leaves->x" "n * 2")
atoll_planted_bug(hash length_left_out test_hash common/hash.c
    "uint64_t root = n;" "uint64_t root = 0;")
atoll_planted_bug(hash shares_within_a_block test_hash common/hash.c
    "pool_share(leaves->n, HASH_BLOCK," "pool_share(leaves->n, 1,")
atoll_planted_bug(hash first_blocks_again test_hash common/hash.c
    "leaves.x = x + at;" "leaves.x = x;")

atoll_planted_bug(hash middle_stretch_left_out test_hash common/hash.c
    "^ crc_past(second, PAST_ONE)" "")
atoll_planted_bug(hash stretches_in_the_wrong_order test_hash common/hash.c
    "crc_past(first, PAST_TWO) ^ crc_past(second, PAST_ONE)" "crc_past(first, PAST_ONE) ^ crc_past(second, PAST_TWO)")

atoll_planted_test(hash)
