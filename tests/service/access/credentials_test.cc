// Files of credentials and quotas, tokens, and the bucket of steps.
#include "service/access/credentials.h"

#include <gtest/gtest.h>

#include "service/access/access.h"
#include "service/access/quotas.h"
#include "tests/service/access/access_fixture.h"

namespace seine::test {
namespace {

using std::chrono::milliseconds;

class CredentialsTest : public ::testing::Test {
 protected:
  std::string Error(const std::string& yaml) const {
    ReplaceFile(path_, yaml);
    const auto loaded = Credentials::Load(path_, nullptr);
    return loaded.ok() ? "" : std::string(loaded.status().message());
  }
  TempDir dir_;
  const std::string path_ = dir_.path + "/tokens.yaml";
};

TEST_F(CredentialsTest, AWrongEntryIsNamedAndADigestNeverRepeated) {
  const std::string digest(64, 'a');
  EXPECT_EQ(Error("- {sha256: " + digest + ", tenant: acme, role: reader}"), "");
  EXPECT_EQ(Error("[]"), "");
  EXPECT_EQ(Error("{sha256: x}"), path_ + ": expected a list of credentials");
  EXPECT_EQ(Error("- text"), path_ + ": [0]: expected {sha256, tenant, role} or {san, tenant, role}");
  EXPECT_EQ(Error("- {sha256: s3cret, role: reader}"),
            path_ + ": [0].sha256: expected the SHA-256 of a token, 64 hexadecimal digits");
  EXPECT_EQ(Error("- {sha256: " + digest + ", role: owner}"), path_ + ": [0].role: expected reader, writer or admin");
  EXPECT_EQ(Error("- {sha256: " + digest + "}"), path_ + ": [0].role: is missing: reader, writer or admin");
  EXPECT_EQ(Error("- {role: reader}"), path_ + ": [0]: expected one of sha256 and san");
  EXPECT_EQ(Error("- {sha256: " + digest + ", san: x, role: reader}"), path_ + ": [0]: expected one of sha256 and san");
  EXPECT_EQ(Error("- {s3cret: x}"), path_ + ": [0]: unknown key; there are sha256, san, tenant and role");
  EXPECT_EQ(Error("- {sha256: " + digest + ", tenant: a/b, role: reader}"),
            path_ + ": [0].tenant: expected 1 to 128 letters, digits, '.', '_' or '-'");
  const std::string entry = "- {sha256: " + digest + ", role: reader}\n";
  EXPECT_EQ(Error(entry + entry), path_ + ": [1]: a second entry for the same credential");
  const std::string upper = "- {sha256: " + std::string(64, 'A') + ", role: admin}\n";
  EXPECT_EQ(Error(entry + upper), path_ + ": [1]: a second entry for the same credential");
}

TEST_F(CredentialsTest, ATokenIsItsDigestAndNothingElse) {
  ReplaceFile(path_, TokenEntry("s3cret", "acme", "writer") + TokenEntry("other", "beta", "reader"));
  const auto loaded = Credentials::Load(path_, nullptr);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ASSERT_NE((*loaded)->OfToken("s3cret"), nullptr);
  EXPECT_EQ((*loaded)->OfToken("s3cret")->tenant, "acme");
  EXPECT_EQ((*loaded)->OfToken("s3cret")->role, Role::kWriter);
  for (const std::string& wrong : {std::string(), std::string("s3cret "), std::string("S3cret"), std::string("s3cre"),
                                   TextOfFile(path_).substr(11, 64), std::string(kMaxTokenBytes + 1, 'x')}) {
    EXPECT_EQ((*loaded)->OfToken(wrong), nullptr) << wrong;
  }
}

TEST_F(CredentialsTest, WhatIsTakenOutOfTheFileIsRevokedAndTheRestStays) {
  ReplaceFile(path_, TokenEntry("stays", "acme", "writer") + TokenEntry("goes", "acme", "writer") +
                         TokenEntry("sinks", "acme", "admin"));
  const auto before = Credentials::Load(path_, nullptr);
  ASSERT_TRUE(before.ok());
  const auto stays = (*before)->OfToken("stays"), goes = (*before)->OfToken("goes"),
             sinks = (*before)->OfToken("sinks");
  ReplaceFile(path_, TokenEntry("stays", "acme", "writer") + TokenEntry("sinks", "acme", "reader"));
  const auto after = Credentials::Load(path_, before->get());
  ASSERT_TRUE(after.ok());
  (*before)->RevokeWhatIsNotIn(**after);
  EXPECT_FALSE(stays->revoked);
  EXPECT_TRUE(goes->revoked);
  EXPECT_TRUE(sinks->revoked);
  EXPECT_EQ((*after)->OfToken("stays"), stays);
  EXPECT_FALSE((*after)->OfToken("sinks")->revoked);
}

TEST_F(CredentialsTest, TheMetadataIsOneBearerToken) {
  ReplaceFile(path_, TokenEntry("s3cret", "acme", "writer"));
  const auto access = Access::Open({.tokens_file = path_, .quotas_file = "", .unix_calls = "owner"}, nullptr);
  ASSERT_TRUE(access.ok()) << access.status();
  const auto role = [&](std::vector<std::string> authorization, bool over_unix = false) {
    const auto caller = (*access)->Identify({"peer", over_unix, std::move(authorization), {}});
    return caller.ok() ? (*caller)->role : Role::kNone;
  };
  EXPECT_EQ(role({"Bearer s3cret"}), Role::kWriter);
  EXPECT_EQ(role({"bearer  s3cret"}), Role::kWriter);
  EXPECT_EQ(role({"s3cret"}), Role::kNone);
  EXPECT_EQ(role({"Basic s3cret"}), Role::kNone);
  EXPECT_EQ(role({"Bearer s3cret", "Bearer s3cret"}), Role::kNone);
  EXPECT_EQ(role({}), Role::kNone);
  EXPECT_EQ(role({}, /*over_unix=*/true), Role::kAdmin);
  EXPECT_EQ(role({"Bearer wrong"}, /*over_unix=*/true), Role::kNone);
}

TEST_F(CredentialsTest, QuotasAreReadAndAWrongOneIsNamed) {
  const auto error = [this](const std::string& yaml) {
    ReplaceFile(path_, yaml);
    const auto loaded = LoadQuotas(path_);
    return loaded.ok() ? "" : std::string(loaded.status().message());
  };
  EXPECT_EQ(error("acme: {memory: 4GiB, sequences: 10, calls: 3}\nbeta: {steps_per_second: 5}\n"), "");
  const auto quotas = LoadQuotas(path_);
  EXPECT_EQ(quotas->at("acme").memory_bytes, int64_t{4} << 30);
  EXPECT_EQ(quotas->at("acme").sequences, 10);
  EXPECT_EQ(quotas->at("beta").steps_per_second, 5);
  EXPECT_EQ(error("- acme"), path_ + ": expected tenants and their quotas");
  EXPECT_EQ(error("acme: 5"), path_ + ": 'acme': expected keys and values");
  EXPECT_EQ(error("acme: {sequences: -1}"), path_ + ": acme.sequences: '-1' is no number in [0, 1000000000]");
  EXPECT_EQ(error("acme: {memory: much}"),
            path_ + ": acme.memory: 'much' is no size in bytes; write 8GiB, 512MiB or 1048576");
  EXPECT_EQ(error("acme: {sequence: 1}"), path_ + ": acme.sequence: unknown key; did you mean sequences?");
  EXPECT_EQ(error("a b: {calls: 1}"), path_ + ": 'a b': expected 1 to 128 letters, digits, '.', '_' or '-'");
}

TEST(StepBucket, ASecondsWorthAtOnceThenOneByOne) {
  StepBucket bucket;
  StepBucket::Time now{};
  for (int i = 0; i < 10; ++i) EXPECT_EQ(bucket.Take(10, now).count(), 0) << i;
  const auto wait = bucket.Take(10, now);
  EXPECT_GT(wait, milliseconds(99));
  EXPECT_LT(wait, milliseconds(101));
  now += wait;
  EXPECT_EQ(bucket.Take(10, now).count(), 0);
  EXPECT_GT(bucket.Take(10, now).count(), 0);
  now += std::chrono::hours(1);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(bucket.Take(10, now).count(), 0) << i;
  EXPECT_GT(bucket.Take(10, now).count(), 0);
}

}  // namespace
}  // namespace seine::test
