// Damage to a profile is seen: every bit of a small one is flipped in turn. Profiles without a checksum still load.
#include "profile/io/checksum.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "profile/io/tensor_writer.h"
#include "profile/profile.h"
#include "tests/profile/test_util.h"
#include "tests/temp_folder.h"

namespace seine {
namespace {

std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Profile TinyProfile() {
  constexpr int kDim = 4;
  ProfileBuilder builder(1, 1, 1, kDim);
  const std::vector<float> rows = RandomFloats(64 * kDim, 1);
  builder.AddKeys(0, rows.data(), 64, 16, PlainRope(kDim));
  builder.AddQueries(0, rows.data(), 64, 16, PlainRope(kDim));
  Profile profile = builder.Finish().value();
  profile.model = "a model";
  profile.texts = {"one"};
  profile.rope_json = R"({"rope_theta": 10000.0})";
  return profile;
}

// All that a profile says, as it would be written again.
std::string Said(const Profile& profile, const TempFolder& folder) {
  EXPECT_TRUE(WriteProfile(profile, ProfilePrecision::kFloat32, folder.Path("said")).ok());
  return BytesOf(folder.Path("said"));
}

TEST(Checksum, NoFlippedBitOfAProfileGoesUnseen) {
  TempFolder folder;
  const std::string path = folder.Path("p");
  ASSERT_TRUE(WriteProfile(TinyProfile(), ProfilePrecision::kFloat32, path).ok());
  const std::string bytes = BytesOf(path), said = Said(*ReadProfile(path), folder);
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  const auto put = [&](size_t at, char byte) {
    file.seekp(static_cast<std::streamoff>(at));
    file.put(byte).flush();
  };
  int loaded = 0;
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      put(at, static_cast<char>(bytes[at] ^ (1 << bit)));
      if (const absl::StatusOr<Profile> read = ReadProfile(path); read.ok()) {
        std::string checksum;
        EXPECT_TRUE(CheckIsProfile(path, &checksum).ok());
        EXPECT_EQ(checksum, "") << "silently: bit " << bit << " of byte " << at;
        EXPECT_EQ(Said(*read, folder), said) << "other content: bit " << bit << " of byte " << at;
        ++loaded;
      }
    }
    put(at, bytes[at]);
  }
  EXPECT_LE(loaded, 14 * 8);  // the key's name: the file then says of itself that it has no checksum
  EXPECT_TRUE(ReadProfile(path).ok());
}

TEST(Checksum, OfOtherBytesOrOfAnotherKind) {
  TempFolder folder;
  const std::string path = folder.Path("p");
  ASSERT_TRUE(WriteProfile(TinyProfile(), ProfilePrecision::kFloat16, path).ok());
  const std::string bytes = BytesOf(path);
  std::string changed = bytes;
  changed.back() ^= 1;
  absl::Status status = ReadProfile(folder.Write("p", changed)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(absl::StartsWith(status.message(), path + ": damaged: its checksum is crc32:")) << status;
  EXPECT_TRUE(CheckIsProfile(path).ok());  // reads the header alone
  changed = bytes;
  changed.replace(changed.find("crc32:"), 5, "md5_4");
  status = ReadProfile(folder.Write("p", changed)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StartsWith(status.message(), path + ": checksum: 'md5_4:")) << status;
}

TEST(Checksum, IsMadeAnewForMetadataThatWasCopied) {
  TempFolder folder;
  const std::string path = folder.Path("t");
  ASSERT_TRUE(
      WriteTensors({}, {{"a", "1"}, {"seine_checksum", "crc32:12345678"}, {"b", "\"seine_checksum\":\"crc32:00000000"}},
                   path)
          .ok());
  const absl::StatusOr<TensorFile> file = TensorFile::Read(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->metadata().size(), 3u);
  EXPECT_NE(file->checksum(), "crc32:12345678");
}

// The same file is in client/python/tests/test_trace.py: both writers make the same bytes.
TEST(Checksum, IsAsPythonMakesIt) {
  TempFolder folder;
  ASSERT_TRUE(WriteTensors({{"a", TensorFile::Type::kU8, {4}, "wxyz"}}, {{"n", "7"}}, folder.Path("t")).ok());
  const std::string header = R"({"__metadata__":{"seine_checksum":"crc32:ad71efe2","n":"7"},)"
                             R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
  EXPECT_EQ(BytesOf(folder.Path("t")), std::string("p\0\0\0\0\0\0\0", 8) + header + "wxyz");
}

// As they were written before there were checksums; so is the committed one.
TEST(Checksum, AProfileWithoutOneLoads) {
  TempFolder folder;
  const std::string path = folder.Path("p");
  ASSERT_TRUE(WriteProfile(TinyProfile(), ProfilePrecision::kFloat16, path).ok());
  std::string bytes = BytesOf(path), entry = "\"seine_checksum\":\"crc32:00000000\",";
  bytes.replace(bytes.find("\"seine_checksum\""), entry.size(), "");
  bytes.insert(bytes.find("}}") + 2, entry.size(), ' ');  // the header's length stays
  std::string checksum = "unset";
  EXPECT_TRUE(CheckIsProfile(folder.Write("p", bytes), &checksum).ok());
  EXPECT_EQ(checksum, "");
  EXPECT_TRUE(ReadProfile(path).ok()) << ReadProfile(path).status();
}

}  // namespace
}  // namespace seine
