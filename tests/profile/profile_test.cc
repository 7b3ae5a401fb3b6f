// The profile's file: there and back in both precisions, and every way in which one can be torn, foreign or wrong.
#include "profile/profile.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "profile/io/tensor_writer.h"
#include "profile/moments.h"
#include "tests/profile/test_util.h"
#include "tests/temp_folder.h"

namespace seine {
namespace {

using Eigen::MatrixXd;
using Eigen::VectorXd;

Profile SmallProfile(int dim = 8) {
  constexpr int kLayers = 2, kQ = 4, kKv = 2;
  ProfileBuilder builder(kLayers, kQ, kKv, dim);
  const Rope rope = PlainRope(dim);
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::vector<float> rows = RandomFloats(200 * kQ * dim, layer);
    builder.AddKeys(layer, rows.data(), 200, 16, rope);
    builder.AddQueries(layer, rows.data(), 150, 16, rope);
    builder.AddValues(layer, rows.data(), 200);
  }
  Profile profile = builder.Finish().value();
  profile.model = "a model";
  profile.licence = "any";
  profile.texts = {"one \"text\"", "two"};
  profile.rope_json = R"({"rope_theta": 10000.0, "rope_type": "default"})";
  return profile;
}

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// As if it had no checksum, so that what the file itself says is looked at.
std::string Unchecked(std::string bytes) {
  const std::string key = "\"seine_checksum\"";
  return bytes.replace(bytes.find(key), key.size(), "\"seine_chexksum\"");
}

template <typename Matrix>
void ExpectClose(const std::vector<Matrix>& got, const std::vector<Matrix>& wanted, double precision) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].size(), wanted[i].size());
    const double error = ((got[i] - wanted[i]).array().abs() - precision * wanted[i].array().abs()).maxCoeff();
    EXPECT_LE(error, 0x1p-25) << i;  // half a subnormal step of fp16
  }
}

TEST(Profile, MayBeWithoutValues) {
  TempFolder folder;
  Profile profile = SmallProfile();
  for (LayerProfile& layer : profile.layers) layer.v_mean.clear(), layer.v_moment.clear();
  const std::string path = folder.Path("p");
  ASSERT_TRUE(WriteProfile(profile, ProfilePrecision::kFloat32, path).ok());
  const absl::StatusOr<Profile> got = ReadProfile(path);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(got->layers[0].v_mean.empty() && got->layers[1].v_moment.empty());
  ExpectClose(got->layers[1].q_moment, profile.layers[1].q_moment, 0x1p-24);
  profile.layers[1] = SmallProfile().layers[1];  // of one layer alone: not a profile
  EXPECT_TRUE(absl::StrContains(WriteProfile(profile, ProfilePrecision::kFloat32, path).message(), "layers.0.v_mean"));
}

TEST(Profile, FlattenedHeadsComeBack) {
  const LayerProfile layer = SmallProfile().layers[1];
  const std::vector<double> means = Flatten(layer.q_mean), moments = Flatten(layer.q_moment);
  ASSERT_EQ(moments.size(), 4 * TriangleSize(8));
  ExpectClose(MeansOf({means.begin(), means.end()}, 4, 8), layer.q_mean, 0x1p-23);
  ExpectClose(MomentsOf({moments.begin(), moments.end()}, 4, 8), layer.q_moment, 0x1p-23);
}

TEST(Profile, WrittenAndReadBack) {
  TempFolder folder;
  for (const int dim : {8, 64, 80, 96, 128, 256}) {
    const Profile profile = SmallProfile(dim);
    for (const auto& [precision, error] :
         {std::pair(ProfilePrecision::kFloat16, 0x1p-11), {ProfilePrecision::kFloat32, 0x1p-24}}) {
      const std::string path = folder.Path("p.safetensors");
      const absl::Status written = WriteProfile(profile, precision, path);
      ASSERT_TRUE(written.ok()) << written;
      const absl::StatusOr<Profile> read = ReadProfile(path);
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_EQ(read->model, profile.model);
      EXPECT_EQ(read->licence, profile.licence);
      EXPECT_EQ(read->texts, profile.texts);
      EXPECT_EQ(read->rope_json, profile.rope_json);
      EXPECT_EQ(read->rope_style, profile.rope_style);
      EXPECT_EQ(read->key_tokens, 200);
      EXPECT_EQ(read->query_tokens, 150);
      ASSERT_TRUE(CheckGeometry(*read, 2, 4, 2, dim).ok());
      for (int layer = 0; layer < 2; ++layer) {
        const LayerProfile &got = read->layers[layer], &wanted = profile.layers[layer];
        ExpectClose(got.q_mean, wanted.q_mean, error);
        ExpectClose(got.k_mean, wanted.k_mean, error);
        ExpectClose(got.v_mean, wanted.v_mean, error);
        ExpectClose(got.q_moment, wanted.q_moment, error);
        ExpectClose(got.k_moment, wanted.k_moment, error);
        ExpectClose(got.k_residual, wanted.k_residual, error);
        ExpectClose(got.v_moment, wanted.v_moment, error);
        EXPECT_EQ(got.k_moment[1], MatrixXd(got.k_moment[1].transpose()));
      }
      // Triangles, not squares.
      const int64_t numbers = 2 * ((4 + 2 + 2) * dim + (4 + 3 * 2) * dim * (dim + 1) / 2);
      const int64_t bytes = numbers * (precision == ProfilePrecision::kFloat16 ? 2 : 4);
      const int64_t header = static_cast<int64_t>(Contents(path).size()) - bytes;
      EXPECT_GT(header, 0);
      EXPECT_LT(header, 4096);
    }
  }
}

TEST(Profile, HeaderAlone) {
  TempFolder folder;
  const Profile profile = SmallProfile();
  const std::string path = folder.Path("p.safetensors");
  ASSERT_TRUE(WriteProfile(profile, ProfilePrecision::kFloat16, path).ok());
  const absl::StatusOr<ProfileHeader> header = ReadProfileHeader(path);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->model, profile.model);
  EXPECT_EQ(header->rope_json, profile.rope_json);
  EXPECT_EQ(header->rope_style, profile.rope_style);
  EXPECT_EQ(header->num_layers, 2);
  EXPECT_EQ(header->num_q_heads, 4);
  EXPECT_EQ(header->num_kv_heads, 2);
  EXPECT_EQ(header->head_dim, 8);
  ASSERT_TRUE(WriteTensors({}, {{"format", "a trace"}}, path).ok());
  EXPECT_EQ(ReadProfileHeader(path).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReadProfileHeader(folder.Path("none")).status().code(), absl::StatusCode::kNotFound);
}

TEST(Profile, RopeNotStatedAndTheOtherStyle) {
  TempFolder folder;
  Profile profile = SmallProfile();
  profile.rope_json = "";
  profile.rope_style = Rope::Style::kInterleaved;
  ASSERT_TRUE(WriteProfile(profile, ProfilePrecision::kFloat16, folder.Path("p")).ok());
  const absl::StatusOr<Profile> read = ReadProfile(folder.Path("p"));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->rope_json, "");
  EXPECT_EQ(read->rope_style, Rope::Style::kInterleaved);
}

TEST(Profile, RefusesToWriteWhatItCannotHold) {
  TempFolder folder;
  Profile profile = SmallProfile();
  profile.layers[1].k_moment[0] *= 1e6;
  absl::Status status = WriteProfile(profile, ProfilePrecision::kFloat16, folder.Path("p"));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StartsWith(status.message(), "profile: layers.1.k_moment holds ")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "fp16 cannot; write fp32")) << status;
  EXPECT_TRUE(WriteProfile(profile, ProfilePrecision::kFloat32, folder.Path("p")).ok());
  profile.layers[1].k_moment[0](0, 0) = std::nan("");
  EXPECT_TRUE(absl::StrContains(WriteProfile(profile, ProfilePrecision::kFloat32, folder.Path("p")).message(),
                                "layers.1.k_moment holds nan, which is not finite"));

  profile = SmallProfile();
  profile.layers[0].v_mean.pop_back();
  EXPECT_TRUE(absl::StrContains(WriteProfile(profile, ProfilePrecision::kFloat16, folder.Path("p")).message(),
                                "profile: layers.0.v_mean is not of the profile's geometry"));
  profile = SmallProfile();
  profile.texts = {"\xff"};
  EXPECT_TRUE(absl::StrContains(WriteProfile(profile, ProfilePrecision::kFloat16, folder.Path("p")).message(),
                                "texts must be UTF-8"));
  EXPECT_EQ(WriteProfile(SmallProfile(), ProfilePrecision::kFloat16, folder.Path("no/p")).code(),
            absl::StatusCode::kNotFound);
}

TEST(Profile, TornAndMissingFiles) {
  TempFolder folder;
  ASSERT_TRUE(WriteProfile(SmallProfile(), ProfilePrecision::kFloat16, folder.Path("p")).ok());
  const std::string bytes = Contents(folder.Path("p"));
  for (const size_t size : {size_t{0}, size_t{5}, size_t{100}, bytes.size() / 2, bytes.size() - 1}) {
    const std::string path = folder.Write("torn", bytes.substr(0, size));
    const absl::Status status = ReadProfile(path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << size << ": " << status;
    EXPECT_TRUE(absl::StartsWith(status.message(), path + ": cut short")) << status;
  }
  EXPECT_EQ(ReadProfile(folder.Path("missing")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadProfile(folder.Write("text", "this is no tensor file at all")).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Each case changes the header's text, keeping its length.
TEST(Profile, ForeignAndContradictoryFiles) {
  TempFolder folder;
  ASSERT_TRUE(WriteProfile(SmallProfile(), ProfilePrecision::kFloat32, folder.Path("p")).ok());
  const std::string bytes = Unchecked(Contents(folder.Path("p")));
  const struct {
    const char *from, *to, *message;
  } cases[] = {
      {"seine-profile-1", "seine-profile-3",
       "format seine-profile-3 is another version; this program reads seine-profile-1 and seine-profile-2"},
      {"seine-profile-1", "seine-profile-2", "metadata has no layer_ropes"},
      {"seine-profile-1", "seine-trace-1.0", "not a profile: metadata's format is not seine-profile-1"},
      {"\"format\"", "\"farmat\"", "not a profile"},
      {"\"num_layers\":\"2\"", "\"num_layers\":\"3\"", "tensor layers.2.q_mean is missing"},
      {"\"num_layers\":\"2\"", "\"num_layers\":\"x\"", "num_layers: must be a number from 1 to 65536, not 'x'"},
      {"\"num_q_heads\":\"4\"", "\"num_q_heads\":\"0\"", "num_q_heads: must be a number"},
      {"\"num_q_heads\":\"4\"", "\"num_q_heads\":\"5\"", "num_q_heads: 5 is no multiple of num_kv_heads, 2"},
      {"\"num_q_heads\":\"4\"", "\"num_q_heads\":\"6\"", "tensor layers.0.q_mean: must be [6, 8], not [4, 8]"},
      {"\"head_dim\":\"8\"", "\"head_dim\":\"6\"", "tensor layers.0.q_mean: must be [4, 6], not [4, 8]"},
      {"\"head_dim\":\"8\"", "\"head_dim\":\"7\"", "head_dim: must be even"},
      {"\"query_tokens\"", "\"query_tocans\"", "metadata has no query_tokens"},
      {"\"licence\"", "\"license\"", "metadata has no licence"},
      {"half_split", "half-split", "rope_style: must be half_split or interleaved, not 'half-split'"},
      {"\\\"rope_theta\\\"", "\\\"rope_betta\\\"", "rope.rope_theta: is missing"},
      {"[\\\"one", "[7,one", "texts: must be a JSON list of strings"},
      {"layers.1.k_residual", "layers.1.k_residuum", "tensor layers.1.k_residual is missing"},
      {"\"dtype\":\"F32\"", "\"dtype\":\"I32\"", "tensor layers.0.q_mean: must be F16 or F32, not I32"},
  };
  for (const auto& test : cases) {
    std::string changed = bytes;
    const size_t at = changed.find(test.from);
    ASSERT_NE(at, std::string::npos) << test.from;
    ASSERT_EQ(std::string(test.from).size(), std::string(test.to).size()) << test.from;
    changed.replace(at, std::string(test.to).size(), test.to);
    const std::string path = folder.Write("changed", changed);
    const absl::Status status = ReadProfile(path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << test.to << ": " << status;
    EXPECT_TRUE(absl::StartsWith(status.message(), path + ": ")) << test.to << ": " << status;
    EXPECT_TRUE(absl::StrContains(status.message(), test.message)) << test.to << ": " << status;
  }
}

TEST(Profile, RefusesNaNAndMatricesThatAreNoMoments) {
  TempFolder folder;
  const std::string path = folder.Path("p");
  for (const ProfilePrecision precision : {ProfilePrecision::kFloat16, ProfilePrecision::kFloat32}) {
    Profile profile = SmallProfile();
    const double spread = profile.layers[1].v_moment[1].trace();
    profile.layers[1].v_moment[1](2, 5) = profile.layers[1].v_moment[1](5, 2) = spread;
    ASSERT_TRUE(WriteProfile(profile, precision, path).ok());
    EXPECT_EQ(ReadProfile(path).status().message(),
              path + ": tensor layers.1.v_moment: head 1 is not positive semi-definite");

    profile = SmallProfile();
    profile.layers[0].q_moment[3](4, 4) = -1e-4;
    ASSERT_TRUE(WriteProfile(profile, precision, path).ok());
    EXPECT_TRUE(absl::StrContains(ReadProfile(path).status().message(), "head 3 is not positive semi-definite"));

    // A moment of rank one, rounded, is no longer positive exactly, and still a moment. A head of nothing but zeros,
    // too.
    profile = SmallProfile(128);
    const VectorXd x = VectorXd::LinSpaced(128, -3, 5.123);
    profile.layers[0].k_moment[0] = x * x.transpose();
    profile.layers[0].v_moment[0].setZero();
    ASSERT_TRUE(WriteProfile(profile, precision, path).ok());
    EXPECT_TRUE(ReadProfile(path).ok()) << ReadProfile(path).status();
  }

  // A NaN is never written: put one into the file's last number.
  ASSERT_TRUE(WriteProfile(SmallProfile(), ProfilePrecision::kFloat32, path).ok());
  std::string bytes = Unchecked(Contents(path));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  bytes.replace(bytes.size() - 4, 4, reinterpret_cast<const char*>(&nan), 4);
  EXPECT_EQ(ReadProfile(folder.Write("p", bytes)).status().message(),
            path + ": tensor layers.1.v_moment: holds a value that is not finite");
}

// A file says that it is of the second version only where an older program would misread it.
TEST(Profile, LayersThatTurnOtherwiseAreStated) {
  TempFolder folder;
  const std::string path = folder.Path("p");
  Profile profile = SmallProfile();
  ASSERT_TRUE(WriteProfile(profile, ProfilePrecision::kFloat32, path).ok());
  EXPECT_TRUE(absl::StrContains(Contents(path), "\"seine-profile-1\""));
  EXPECT_FALSE(absl::StrContains(Contents(path), "layer_ropes"));
  profile.layer_ropes_json = R"([{"layers": [1], "rope": {"rope_type": "none"}}])";
  ASSERT_TRUE(WriteProfile(profile, ProfilePrecision::kFloat32, path).ok());
  EXPECT_TRUE(absl::StrContains(Contents(path), "\"seine-profile-2\""));
  const auto read = ReadProfile(path);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->layer_ropes_json, profile.layer_ropes_json);
  EXPECT_EQ(ReadProfileHeader(path)->layer_ropes_json, profile.layer_ropes_json);
  profile.layer_ropes_json = R"([{"layers": [2], "rope": {"rope_type": "none"}}])";
  ASSERT_TRUE(WriteProfile(profile, ProfilePrecision::kFloat32, path).ok());
  EXPECT_EQ(ReadProfile(path).status().message(), path + ": layer_ropes: layer 2: the model has 2 layers");
}

TEST(Profile, AnotherModelsGeometryIsNamed) {
  const Profile profile = SmallProfile();
  EXPECT_TRUE(CheckGeometry(profile, 2, 4, 2, 8).ok());
  const struct {
    int layers, q, kv, dim;
    const char* message;
  } cases[] = {{3, 4, 2, 8, "profile: is of another model (a model): its num_layers is 2, not 3"},
               {2, 8, 2, 8, "profile: is of another model (a model): its num_q_heads is 4, not 8"},
               {2, 4, 4, 8, "profile: is of another model (a model): its num_kv_heads is 2, not 4"},
               {2, 4, 2, 64, "profile: is of another model (a model): its head_dim is 8, not 64"}};
  for (const auto& test : cases) {
    const absl::Status status = CheckGeometry(profile, test.layers, test.q, test.kv, test.dim);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), test.message);
  }
}

}  // namespace
}  // namespace seine
