// What commands on indexes and sequences print, and what they take.
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/client/cli/cli_fixture.h"

namespace seine {
namespace {

TEST_F(CliTest, IndexesAndSequences) {
  const Json created = SeineJson(
      "index create two --layers 2 --q-heads 4 --kv-heads 2 --head-dim 64 --dtype bf16 --sink 32 --beta .2 --scope "
      "q_head "
      "--gqa-reduce mean --centre none --coarse collision --kv-store none --memory-limit 2GiB");
  EXPECT_EQ(created["dtype"], "bf16");
  EXPECT_EQ(created["sink"], 32);
  EXPECT_EQ(created["local"], 512);  // a default, filled in
  EXPECT_EQ(created["candidate_fraction"], 0.2);
  EXPECT_EQ(created["scope"], "q_head");
  EXPECT_EQ(created["gqa_reduce"], "mean");
  EXPECT_EQ(created["centre"], "none");
  EXPECT_EQ(created["coarse"], "collision");
  EXPECT_EQ(created["kv_store"], "none");
  EXPECT_EQ(created["memory_limit_bytes"], int64_t{2} << 30);
  EXPECT_EQ(SeineJson("index get two"), created);
  const Outcome list = Seine("index list");
  EXPECT_EQ(std::count(list.out.begin(), list.out.end(), '\n'), 3) << list.out;  // a header and two indexes
  EXPECT_TRUE(absl::StrContains(list.out, "KV HEADS")) << list.out;

  EXPECT_EQ(SeineJson("seq create two a")["id"], "a");
  EXPECT_EQ(SeineJson("seq fork two a b")["id"], "b");
  EXPECT_FALSE(SeineJson("seq create two")["id"].get<std::string>().empty());
  EXPECT_EQ(SeineJson("seq list two")["sequences"].size(), 3u);
  EXPECT_EQ(SeineJson("seq delete two b")["deleted"]["id"], "b");
  EXPECT_EQ(SeineJson("seq get two a")["layer_tokens"], Json({0, 0}));
  EXPECT_EQ(SeineJson("index delete two")["deleted"], "two");
}

TEST_F(CliTest, AppendContinuesWhereTheLayerEnds) {
  EXPECT_EQ(SeineJson("seq create m grown")["id"], "grown");
  EXPECT_EQ(SeineJson("append m grown --layer 1 --file %keys.npy --tensor array --count 2")["position"], 0);
  EXPECT_EQ(SeineJson("append m grown --layer 1 --file %keys.npy --tensor array --first 2")["position"], 2);
  EXPECT_EQ(SeineJson("seq get m grown")["layer_tokens"], Json({0, 5}));
  EXPECT_EQ(SeineJson("seq truncate m grown --position 3")["layer_tokens"], Json({0, 3}));
  const Outcome text = Seine("append m grown --layer 1 --file %keys.npy --tensor array --first 3");
  EXPECT_EQ(text.out, "layer 1: 2 tokens at position 3\n");
  EXPECT_EQ(SeineJson("seq delete m grown")["deleted"]["id"], "grown");
}

TEST_F(CliTest, QueriesFromFiles) {
  const auto expected = [&](int head) { return Json(model_->ExactTopK(0, head, 9, 16, 528)); };
  const Json whole = SeineJson("query m s --layer 0 --vector %query.npy --top-k 9 --exact --scores");
  EXPECT_EQ(whole["path"], "exact");
  EXPECT_EQ(whole["scope"], "q_head");
  EXPECT_EQ(whole["zone_end"], 528);
  ASSERT_EQ(whole["sets"].size(), 4u);
  for (int head = 0; head < 4; ++head) EXPECT_EQ(whole["sets"][head]["positions"], expected(head));
  EXPECT_EQ(whole["sets"][0]["scores"].size(), 9u);

  EXPECT_EQ(SeineJson("query m s --layer 0 --vector %rows.npy --row 1 --top-k 9 --exact --scores")["sets"],
            whole["sets"]);
  EXPECT_EQ(
      SeineJson("query m s --layer 0 --vector %query.npy --row 2 --head 2 --top-k 9 --exact")["sets"][0]["positions"],
      expected(2));
  const Json single = SeineJson("query m s --layer 0 --vector %head.npy --head 2 --top-k 9 --exact");
  ASSERT_EQ(single["sets"].size(), 1u);
  EXPECT_EQ(single["sets"][0]["head"], 2);
  EXPECT_EQ(single["sets"][0]["positions"], expected(2));

  const Outcome text = Seine("query m s --layer 0 --vector %head.npy --head 2 --top-k 9 --exact --scores");
  EXPECT_TRUE(absl::StrContains(text.out, "head 2, 9 tokens: ")) << text.out;
  EXPECT_EQ(std::count(text.out.begin(), text.out.end(), '\n'), 13) << text.out;
  EXPECT_TRUE(absl::StrContains(text.out, "\na head attends its set and the ")) << text.out;
  EXPECT_EQ(SeineJson("query m s --layer 0 --vector %query.npy --scope kv_head --top-k 3")["sets"].size(), 2u);
  EXPECT_EQ(SeineJson("query m s --layer 0 --vector %query.npy --mass-p .5 --mass-cap 20")["sets"].size(), 4u);
  const Json capped = SeineJson("query m s --layer 0 --vector %query.npy --mass-p .99 --mass-cap 2");
  EXPECT_EQ(capped["capped"], true);
  EXPECT_LT(capped["sets"][0]["mass"], .99);
  EXPECT_TRUE(absl::StrContains(Seine("query m s --layer 0 --vector %query.npy --mass-p .99 --mass-cap 2").out,
                                "--mass-cap ended a set"));
}

TEST_F(CliTest, EverySpellingOfAValueIsTaken) {
  const std::string create = "index create spelt --layers 1 --q-heads 4 --kv-heads 2 --head-dim 64 ";
  const struct {
    const char* flag;
    std::vector<const char*> spellings;
    const char* key;
    const char* value;
  } cases[] = {{"--dtype", {"bf16", "bfloat16", "BF16"}, "dtype", "bf16"},
               {"--dtype", {"fp32", "float32"}, "dtype", "fp32"},
               {"--scope", {"q_head", "per_q_head", "PER_Q_HEAD", "q-head"}, "scope", "q_head"},
               {"--scope", {"kv_head", "per_kv_head"}, "scope", "kv_head"},
               {"--kv-store", {"keys_values", "keys-values"}, "kv_store", "keys_values"}};
  for (const auto& test : cases) {
    for (const std::string spelling : test.spellings) {
      EXPECT_EQ(SeineJson(absl::StrCat(create, test.flag, " ", spelling))[test.key], test.value) << spelling;
      EXPECT_EQ(Seine("index delete spelt").exit_code, 0);
    }
  }
}

}  // namespace
}  // namespace seine
