// Every spelling of a value is found; a slip of the finger finds the word that was meant.
#include "profile/spelling.h"

#include <gtest/gtest.h>

#include <set>

namespace seine {
namespace {

TEST(SpellingTest, AliasesAreOneValue) {
  for (const char* text : {"bf16", "bfloat16", "BFLOAT16", "BF16"}) EXPECT_EQ(FindValue("DType", text), 3) << text;
  for (const char* text : {"q_head", "per_q_head", "per-q-head"}) EXPECT_EQ(FindValue("Scope", text), 2) << text;
  EXPECT_EQ(FindValue("DType", "int8"), 0);
  EXPECT_EQ(FindValue("DType", ""), 0);
  EXPECT_EQ(FindValue("Nothing", "bf16"), 0);
  EXPECT_EQ(SpellValue("DType", 3), "bf16");
  EXPECT_EQ(SpellValue("DType", 0), "unknown");
  EXPECT_EQ(SpellValue("DType", 4), "unknown");
  EXPECT_EQ(ListValues("DType"), "fp32, fp16, bf16");
}

TEST(SpellingTest, NoSpellingMeansTwoValues) {
  for (const ValueSpellings& spellings : AllValueSpellings()) {
    std::set<std::string> seen;
    for (const auto& value : spellings.values) {
      for (const std::string& text : value) EXPECT_TRUE(seen.insert(text).second) << spellings.type << " " << text;
    }
  }
}

TEST(SpellingTest, TheNearestWordIsWithinAThirdOfTheLetters) {
  const std::vector<std::string> words = {"create", "list", "get", "delete"};
  EXPECT_EQ(NearestWord("craete", words), "create");  // two neighbours changed places
  EXPECT_EQ(NearestWord("lst", words), "list");
  EXPECT_EQ(NearestWord("gett", words), "get");
  EXPECT_EQ(NearestWord("remove", words), "");
  EXPECT_EQ(NearestWord("", words), "");
  EXPECT_EQ(NearestWord("list", {}), "");
}

}  // namespace
}  // namespace seine
