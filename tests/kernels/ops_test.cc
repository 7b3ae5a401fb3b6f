// Every vector operation: on every target the same bits as the plain twin, and near float64.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "kernels/codecs/kinds/rsq.h"
#include "kernels/codecs/rsq/lloyd_max.h"
#include "kernels/codecs/rsq/ops.h"
#include "tests/kernels/same_bits.h"
#include "tests/kernels/test_util.h"

namespace seine {
namespace {

RsqTables Tables() {
  RsqTables t;
  const MagnitudeQuantiser& q = RsqQuantiser();
  for (int i = 0; i < 7; ++i) t.thresholds2[i] = q.thresholds[i] * q.thresholds[i];
  for (int i = 0; i < 8; ++i) {
    t.levels[i] = q.levels[i];
    t.levels8[i] = static_cast<uint8_t>(std::lround(q.levels[i] * 127 / q.levels[7]));
  }
  return t;
}

TEST(Targets, TheBestIsChosenAndUnknownOnesAreRefused) {
  const std::vector<std::string> targets = cpu::SupportedTargets();
  ASSERT_GE(targets.size(), 2u);
  EXPECT_EQ(targets.back(), "SCALAR");
  ASSERT_TRUE(cpu::ForceTarget(""));
  EXPECT_EQ(cpu::TargetName(), targets.front());
  EXPECT_FALSE(cpu::ForceTarget("AVX9"));
  ASSERT_TRUE(cpu::ForceTarget(""));
}

TEST(Ops, DotsAndConversions) {
  for (const int dim : kTestHeadDims) {
    for (const DType dtype : RowTypesOf(dim)) {
      const int n = 37;
      const Typed typed(Keys(n, dim, dim), dim, dtype);
      constexpr int kGroup = 7;  // four, then three
      const std::vector<float> queries = Gaussian(kGroup * dim, 9);
      std::vector<float> out(kGroup * n), all(static_cast<size_t>(n) * dim);
      ExpectSameBits([&] {
        std::vector<uint8_t> bits;
        cpu::DotRows(typed.rows, n, dim, queries.data(), kGroup, out.data(), n);
        cpu::ToFloat(typed.rows, n, dim, all.data());
        Put(&bits, out.data(), out.size());
        Put(&bits, all.data(), all.size());
        return bits;
      });
      EXPECT_EQ(all, typed.values);
      for (int i = 0; i < n * kGroup; ++i) {
        const float* row = typed.values.data() + static_cast<size_t>(i % n) * dim;
        const float* query = queries.data() + static_cast<size_t>(i / n) * dim;
        const double size = std::sqrt(Dot64(row, row, dim) * Dot64(query, query, dim));
        EXPECT_NEAR(out[i], Dot64(row, query, dim), 2e-7 * size * std::sqrt(dim));
      }
    }
  }
}

TEST(Ops, ExponentialsEqualTheirScalarTwinAndMath) {
  for (const size_t n : {1, 15, 16, 17, 100}) {
    std::vector<float> x = Gaussian(static_cast<int>(n), 3);
    x[0] = -1e30f;  // far under the smallest result
    std::vector<float> lanes(16), out(n);
    ExpectSameBits([&] {
      std::fill(lanes.begin(), lanes.end(), 0.5f);
      std::fill(out.begin(), out.end(), 0.25f);
      cpu::SumExp(x.data(), n, 0.5f, 4.0f, lanes.data());
      cpu::AddExp(x.data(), n, 0.1f, 0.5f, out.data());
      std::vector<uint8_t> bits;
      Put(&bits, lanes.data(), lanes.size());
      Put(&bits, out.data(), out.size());
      return bits;
    });
    double sum = 8, want = 8;
    for (size_t i = 0; i < n; ++i) {
      want += std::exp(x[i] * 0.5 - 4.0);
      EXPECT_NEAR(out[i], 0.25 + 0.5 * std::exp(std::min(x[i] - 0.1, 0.0)), 1e-6);
    }
    for (const float lane : lanes) sum += lane;
    EXPECT_NEAR(sum - 8, want, 1e-5);
  }
}

// Compares rows that are multiplied alone, with others fetched ahead, and gathered: from none to more than four.
TEST(Ops, DotsOfFewRowsAndWithRowsAhead) {
  const int dim = 64, most = 9;
  const Typed typed(Keys(most, dim, 3), dim, DType::kFloat16), other(Keys(most, dim, 4), dim, DType::kFloat16);
  const uint8_t* const chunk = static_cast<const uint8_t*>(typed.rows.data);
  std::vector<int32_t> places(most);
  for (int i = 0; i < most; ++i) places[i] = i;
  for (const int group : {1, 2, 3, 4, 5}) {
    const std::vector<float> queries = Gaussian(group * dim, 5);
    for (int n = 0; n <= most; ++n) {
      OnEveryTarget([&](const std::string&) {
        std::vector<float> alone(group * n + 1, -1), ahead = alone, gathered = alone;
        cpu::DotRows(typed.rows, n, dim, queries.data(), group, alone.data(), n);
        cpu::DotRows(typed.rows, n, dim, queries.data(), group, ahead.data(), n, {other.rows, most});
        cpu::DotGather({&chunk, most, dim, DType::kFloat16, typed.rows.stride_bytes}, places.data(), n, queries.data(),
                       group, gathered.data());
        EXPECT_EQ(ahead, alone);
        EXPECT_EQ(gathered, alone);
        EXPECT_EQ(alone.back(), -1) << "nothing is written behind the last";
        for (int i = 0; i < group * n; ++i) {
          const float* row = typed.values.data() + static_cast<size_t>(i % n) * dim;
          EXPECT_NEAR(alone[i], Dot64(row, queries.data() + static_cast<size_t>(i / n) * dim, dim), 1e-3);
        }
      });
    }
  }
}

TEST(Ops, GatheredDotsEqualRowDots) {
  const int dim = 96, n = 300, group = 7;  // four, then three
  const std::vector<float> keys = Keys(n, dim, 4), queries = Gaussian(group * dim, 5);
  std::vector<std::vector<float>> chunks;
  std::vector<const uint8_t*> pointers;
  for (int c = 0; c < 3; ++c) chunks.emplace_back(keys.begin() + c * 100 * dim, keys.begin() + (c + 1) * 100 * dim);
  for (const auto& c : chunks) pointers.push_back(reinterpret_cast<const uint8_t*>(c.data()));
  std::vector<int32_t> positions = {0,  299, 99,  100, 101, 7,   7,  250, 1,  298, 50,  150,
                                    51, 200, 199, 201, 42,  143, 44, 245, 46, 88,  260, 17};
  for (int i = 0; i < n; ++i) positions.push_back(i * 7 % n);  // more than are under way at once
  std::vector<float> rows(group * n), got(group * positions.size());
  OnEveryTarget([&](const std::string&) {
    cpu::DotRows({keys.data(), dim * sizeof(float), DType::kFloat32}, n, dim, queries.data(), group, rows.data(), n);
    cpu::DotGather({pointers.data(), 100, dim, DType::kFloat32}, positions.data(), static_cast<int>(positions.size()),
                   queries.data(), group, got.data());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], rows[i / positions.size() * n + positions[i % positions.size()]]);
    }
  });
}

TEST(Ops, EveryNonFinitePatternIsFoundInEveryLane) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    const uint16_t infinity = dtype == DType::kFloat16 ? 0x7C00 : 0x7F80;
    std::vector<uint16_t> rows(3 * 64, dtype == DType::kFloat16 ? 0x3C00 : 0x3F80);
    const ConstRows view = {rows.data(), 128, dtype};
    OnEveryTarget([&](const std::string&) {
      ASSERT_EQ(cpu::FirstNonFinite(view, 3, 64), -1);
      for (uint32_t pattern = 0; pattern < 65536; ++pattern) {
        const bool bad = (pattern & infinity) == infinity;
        const bool huge = dtype == DType::kBFloat16 && (pattern & 0x7FFF) >= 0x5F80;  // 2^64 squared overflows
        const int lane = static_cast<int>(pattern % 64);
        std::swap(rows[128 + lane], rows[0]);
        const uint16_t kept = rows[128 + lane];
        rows[128 + lane] = static_cast<uint16_t>(pattern);
        ASSERT_EQ(cpu::FirstNonFinite(view, 3, 64), bad || huge ? 2 : -1) << std::hex << pattern;
        rows[128 + lane] = kept;
      }
    });
  }
  for (const DType dtype : {DType::kQ8, DType::kQ4}) {  // whose scales alone may be no numbers
    for (const uint16_t scale : {0x7C00, 0xFC00, 0x7E00, 0xFFFF}) {
      for (const int at : {0, 32}) {
        Typed typed(Keys(3, 64, 6), 64, dtype);
        OnEveryTarget([&](const std::string&) { ASSERT_EQ(cpu::FirstNonFinite(typed.rows, 3, 64), -1); });
        memcpy(typed.bytes.data() + 2 * typed.rows.stride_bytes + BytesOf(dtype, at), &scale, 2);
        OnEveryTarget([&](const std::string&) { ASSERT_EQ(cpu::FirstNonFinite(typed.rows, 3, 64), 2); });
      }
    }
  }
  std::vector<float> row(64, 1.0f);
  for (const float bad : {NAN, INFINITY, -INFINITY, 3e38f}) {
    for (int lane = 0; lane < 64; ++lane) {
      row[lane] = bad;
      OnEveryTarget([&](const std::string&) {
        ASSERT_EQ(cpu::FirstNonFinite({row.data(), 256, DType::kFloat32}, 1, 64), 0);
      });
      row[lane] = 1;
    }
  }
}

TEST(Ops, RotationIsOrthonormalForEveryHeadDim) {
  for (const int dim : kTestHeadDims) {
    const int p = static_cast<int>(std::bit_floor(static_cast<unsigned>(dim)));
    std::vector<float> signs(2 * p);
    for (size_t i = 0; i < signs.size(); ++i) signs[i] = RotationSign(3, i) / std::sqrt(static_cast<float>(p));
    std::vector<float> a = Keys(5, dim, 1), before = a;
    ExpectSameBits([&] {
      a = before;
      cpu::Rotate(a.data(), 5, dim, signs.data());
      std::vector<uint8_t> bits;
      Put(&bits, a.data(), a.size());
      return bits;
    });
    for (int i = 0; i < 5; ++i) {
      for (int j = 0; j < 5; ++j) {  // inner products, hence norms, stay
        const double want = Dot64(&before[i * dim], &before[j * dim], dim);
        EXPECT_NEAR(Dot64(&a[i * dim], &a[j * dim], dim), want, 1e-5 * std::fabs(want) + 1e-3);
      }
    }
    std::vector<float> spike(dim, 0.0f);  // one hot coordinate spreads over all: what the overlap is for
    spike[dim - 1] = 1;
    cpu::Rotate(spike.data(), 1, dim, signs.data());
    int reached = 0;
    for (const float v : spike) reached += v != 0;
    EXPECT_EQ(reached, p < dim ? p : dim);
  }
}

TEST(Ops, MeanAndSubtract) {
  const int dim = 80, n = 64;
  std::vector<float> rows = Keys(n, dim, 8), mean(dim), work;
  ExpectSameBits([&] {
    work = rows;
    cpu::MeanRow(work.data(), n, dim, mean.data());
    cpu::SubtractRow(work.data(), n, dim, mean.data());
    std::vector<uint8_t> bits;
    Put(&bits, work.data(), work.size());
    return bits;
  });
  for (int j = 0; j < dim; ++j) {
    double sum = 0;
    for (int i = 0; i < n; ++i) sum += rows[static_cast<size_t>(i) * dim + j];
    EXPECT_NEAR(mean[j], sum / n, 1e-5);
  }
}

TEST(Ops, EncodeWindowIsTheSpecReadInFloat64) {
  const RsqTables tables = Tables();
  for (const int dim : kTestHeadDims) {
    const int coarse_bytes = (dim / 8 + 3) / 4 * 4, subvectors = dim / 8;
    std::vector<float> x = Gaussian(64 * dim, dim, .3f);
    for (int j = 0; j < dim; ++j) x[3 * dim + j] = 0;               // a zero key
    for (int j = 0; j < 8; ++j) x[5 * dim + 16 + j] = 0;            // a zero subvector
    for (int j = 0; j < dim; ++j) x[6 * dim + j] = j % 3 ? 1 : -1;  // equal magnitudes
    std::vector<uint8_t> coarse(64 * coarse_bytes), fine(64 * dim / 2);
    std::vector<float> factor(64);
    uint32_t base = 0;
    ExpectSameBits([&] {
      std::fill(coarse.begin(), coarse.end(), 0xAA);
      std::fill(fine.begin(), fine.end(), 0xAA);
      cpu::EncodeRsqWindow(x.data(), dim, tables, coarse_bytes, coarse.data(), factor.data(), fine.data(), &base);
      std::vector<uint8_t> bits;
      Put(&bits, coarse.data(), coarse.size());
      Put(&bits, fine.data(), fine.size());
      Put(&bits, factor.data(), factor.size());
      Put(&bits, &base, 1);
      return bits;
    });
    std::vector<uint8_t> row(coarse_bytes);
    for (int i = 0; i < 64; ++i) {
      const float* key = &x[static_cast<size_t>(i) * dim];
      CopyCoarseRow(CoarseRowAt(coarse.data(), coarse_bytes, i), coarse_bytes, row.data());
      double l1 = 0, l2 = 0;
      for (int j = 0; j < dim; ++j) {
        ASSERT_EQ((row[j / 8] >> (j % 8)) & 1, key[j] >= 0);
        l1 += std::fabs(key[j]);
        l2 += static_cast<double>(key[j]) * key[j];
      }
      EXPECT_NEAR(factor[i], l1 > 0 ? l2 / l1 : 0, 1e-5);
      const uint8_t* record = &fine[static_cast<size_t>(i) * dim / 2];
      for (int b = 0; b < subvectors; ++b) {
        const double r = std::sqrt(Dot64(key + b * 8, key + b * 8, 8));
        double alpha = 0;
        for (int j = 0; j < 8; ++j) {
          const double u = r > 0 ? std::fabs(key[b * 8 + j]) / r : 0;
          int t = 0, bin = 0;
          for (int p = 0; p < 3; ++p) bin |= ((record[p * subvectors + b] >> j) & 1) << p;
          while (t < 7 && u * u > tables.thresholds2[t]) ++t;
          bool near = false;  // rounding may decide a value that lies on a threshold
          for (const float tau2 : tables.thresholds2) near |= std::fabs(u * u - tau2) < 1e-6;
          if (!near) {
            ASSERT_EQ(bin, t) << i << " " << b << " " << j;
          }
          alpha += tables.levels[bin] * std::fabs(key[b * 8 + j]);
        }
        const double weight = alpha > 0 ? r * r / alpha : 0, stored = DecodeFactor(record[3 * subvectors + b], base);
        const bool wide = (base & kWideFactors) != 0;  // then the least is code 1
        const double floor = DecodeFactor(wide ? 1 : 0, base);
        EXPECT_NEAR(stored, weight, std::max(weight / (wide ? 30 : 60), floor)) << i << " " << b;
      }
    }
    for (int i = 0; i < 64 && coarse_bytes != subvectors; ++i) {  // padding is zero
      CopyCoarseRow(CoarseRowAt(coarse.data(), coarse_bytes, i), coarse_bytes, row.data());
      for (int b = subvectors; b < coarse_bytes; ++b) ASSERT_EQ(row[b], 0);
    }
  }
}

TEST(Ops, ThresholdEqualityTakesTheLowerBin) {
  RsqTables tables = Tables();
  tables.thresholds2[3] = .25f;  // r = 2, |x| = 1 = .5 r exactly
  std::vector<float> x(64 * 64, 0.0f);
  x[0] = x[1] = x[2] = x[3] = 1;
  std::vector<uint8_t> coarse(64 * 8), fine(64 * 32);
  std::vector<float> factor(64);
  uint32_t base;
  OnEveryTarget([&](const std::string&) {
    cpu::EncodeRsqWindow(x.data(), 64, tables, 8, coarse.data(), factor.data(), fine.data(), &base);
    ASSERT_EQ((fine[0] & 1) | (fine[8] & 1) << 1 | (fine[16] & 1) << 2, 3);
    ASSERT_EQ(coarse[0], 0xFF);  // zeros count as positive
  });
}

// A factor says a key's length whatever lies beside it, and a zero key's score is 0.
TEST(Ops, KeysBesideAMuchLongerOneKeepTheirLengths) {
  for (const int dim : {64, 128}) {
    RsqOptions options;
    options.head_dim = dim;
    options.centre = Centre::kNone;
    std::vector<float> keys = Gaussian(64 * dim, 31);
    std::fill_n(keys.begin() + 9 * dim, dim, 0.0f);
    const std::vector<float> query = Gaussian(dim, 32);
    std::vector<float> alone, beside;
    for (std::vector<float>* scores : {&alone, &beside}) {
      const Zone zone(keys, dim, options, 64);
      PreparedQuery prepared;
      cpu::ScanArgs args;
      args.layout = &zone.codec->layout();
      args.planes = zone.segments[0];
      args.queries[0].prepared = &prepared;
      args.end = 64;
      scores->resize(64);
      float base, *const to_scores = scores->data(), *const to_base = &base;
      ExpectSameBits([&] {
        zone.codec->PrepareQuery(query.data(), &prepared);
        cpu::ScanScores(args, &to_scores, &to_base);
        std::vector<uint8_t> bits;
        Put(&bits, scores->data(), scores->size());
        return bits;
      });
      for (int j = 0; j < dim; ++j) keys[5 * dim + j] *= 1000;
    }
    EXPECT_EQ(beside[9], 0);
    for (int i = 0; i < 64; ++i) {
      if (i == 5) continue;
      EXPECT_NEAR(beside[i], alone[i], std::fabs(alone[i]) / 15) << i;
    }
    EXPECT_NEAR(beside[5] / alone[5], 1000, 70);
  }
}

TEST(Ops, RerankAddsUpTheRecord) {
  const RsqTables tables = Tables();
  std::mt19937 rng(5);
  for (const int dim : kTestHeadDims) {
    const int n = 41, subvectors = dim / 8;
    std::vector<uint8_t> coarse(n * subvectors), fine(n * dim / 2);
    for (uint8_t& b : coarse) b = static_cast<uint8_t>(rng());
    for (uint8_t& b : fine) b = static_cast<uint8_t>(rng());
    std::vector<int8_t> query(dim);
    for (int8_t& q : query) q = static_cast<int8_t>(static_cast<int>(rng() % 255) - 127);
    std::vector<const uint8_t*> rows, records;
    std::vector<uint32_t> bases(n, FactorBase(1.0f, 1.0f));
    for (int i = 0; i < n; i += 3) bases[i] = FactorBase(1.0f, 0);
    for (int i = 0; i < n; ++i) rows.push_back(&coarse[i * subvectors]), records.push_back(&fine[i * dim / 2]);
    std::vector<float> out(n);
    ExpectSameBits([&] {
      cpu::RerankRsq(rows.data(), records.data(), bases.data(), n, dim, tables, query.data(), out.data());
      std::vector<uint8_t> bits;
      Put(&bits, out.data(), out.size());
      return bits;
    });
    for (int i = 0; i < n; ++i) {
      double want = 0, size = 0;
      for (int j = 0; j < dim; ++j) {
        const int b = j / 8, s = j % 8;
        int t = 0;
        for (int p = 0; p < 3; ++p) t |= ((records[i][p * subvectors + b] >> s) & 1) << p;
        const double w = DecodeFactor(records[i][3 * subvectors + b], bases[i]);
        const double term = w * tables.levels8[t] * query[j] * ((rows[i][b] >> s) & 1 ? 1 : -1);
        want += term;
        size += std::fabs(term);
      }
      EXPECT_NEAR(out[i], want, 1e-6 * size);
    }
  }
}

TEST(Ops, ScanScoresAreTheEstimatorAndTheThresholdKeepsExactlyThoseAbove) {
  for (const int dim : kTestHeadDims) {
    for (const Centre centre : {Centre::kNone, Centre::kWindow, Centre::kGlobal}) {
      RsqOptions options;
      options.head_dim = dim;
      options.centre = centre;
      options.centre_window = 128;
      const int n = 1152;
      const Zone zone(Keys(n, dim, 21), dim, options, 2048);
      const std::vector<float> query = Gaussian(dim, 22);
      PreparedQuery prepared;
      cpu::ScanArgs args;
      args.layout = &zone.codec->layout();
      args.planes = zone.segments[0];
      args.queries[0].prepared = &prepared;
      args.begin = 64 * (centre == Centre::kWindow);
      args.end = n;
      std::vector<float> scores(n - args.begin), bases(scores.size() / 64);
      float *const to_scores = scores.data(), *const to_bases = bases.data();
      Candidates found;
      ExpectSameBits([&] {
        zone.codec->PrepareQuery(query.data(), &prepared);
        std::vector<uint8_t> bits;
        cpu::ScanScores(args, &to_scores, &to_bases);
        Put(&bits, scores.data(), scores.size());
        Put(&bits, bases.data(), bases.size());
        for (const float threshold : {-INFINITY, scores[100], 1e30f}) {
          found = Candidates();
          for (auto* v : {&found.coarse, &found.base}) v->resize(n + 16);
          found.index.resize(n + 16);
          found.rows.resize((n + 16) * args.layout->coarse_bytes);
          Candidates* const to = &found;
          cpu::ScanAbove(args, &threshold, 5000, &to);
          Put(&bits, found.index.data(), found.size);
          Put(&bits, found.coarse.data(), found.size);
          Put(&bits, found.base.data(), found.size);
          Put(&bits, found.rows.data(), found.size * args.layout->coarse_bytes);
          size_t want = 0;
          for (size_t i = 0; i < scores.size(); ++i) {
            if (!(scores[i] >= threshold)) continue;
            EXPECT_EQ(found.index[want], 5000 + args.begin + i);
            EXPECT_EQ(found.coarse[want], scores[i]);
            ++want;
          }
          EXPECT_EQ(found.size, want);
        }
        return bits;
      });
      if (centre == Centre::kGlobal) continue;  // its base is the caller's
      // <q, c> + f <sign(x~), q~> in float64, from the stored centre.
      double error = 0, size = 0;
      for (int i = args.begin; i < n; ++i) {
        double sum = 0;
        std::vector<uint8_t> row(args.layout->coarse_bytes);
        CopyCoarseRow(CoarseRowAt(args.planes.coarse, args.layout->coarse_bytes, i), args.layout->coarse_bytes,
                      row.data());
        for (int j = 0; j < dim; ++j) sum += ((row[j / 8] >> (j % 8)) & 1 ? 1.0 : -1.0) * prepared.transformed[j];
        double want = DecodeFactor(args.planes.factor[i], args.planes.factor_base[i / 64]) * sum;
        for (int j = 0; j < dim && centre == Centre::kWindow; ++j) {
          want += static_cast<double>(args.planes.centre[i / 128 * dim + j]) * args.planes.centre_scale[i / 128] *
                  prepared.transformed[j];
        }
        const double got = scores[i - args.begin] * prepared.coarse_step;
        error += (got - want) * (got - want);
        size += Dot64(&zone.keys[static_cast<size_t>(i) * dim], &zone.keys[static_cast<size_t>(i) * dim], dim);
      }
      // 7-bit tables and int8 centres: a few per cent of |k| |q| / sqrt(dim), the spread of a random key's score.
      EXPECT_LT(std::sqrt(error / size), .03 * std::sqrt(Dot64(query.data(), query.data(), dim) / dim)) << dim;
    }
  }
}

// A threshold that is a key's own score keeps it, and the next larger one does not, whatever the sizes of factors in a
// window and of the base beside them.
TEST(Ops, AThresholdKeepsExactlyTheScoresThatReachIt) {
  const int dim = 96, n = 1216;
  RsqOptions options;
  options.head_dim = dim;
  options.centre = Centre::kNone;
  const Zone zone(Keys(n, dim, 71), dim, options, 2048);
  PreparedQuery prepared;
  zone.codec->PrepareQuery(Gaussian(dim, 72).data(), &prepared);
  std::mt19937 rng(73);
  std::vector<uint8_t> factor(n);
  for (uint8_t& code : factor) code = static_cast<uint8_t>(rng() % 256);
  std::vector<uint32_t> bases;
  for (const float largest : {1.0f, 1.0f, 3e4f, 1e-20f, 3e-31f, 1e-37f, 1e-40f, 3e33f, 0.0f}) {
    bases.push_back(FactorBase(largest, largest));
    bases.push_back(FactorBase(largest, 0));
  }
  bases.push_back(FactorBase(0x1p-149f, 0));
  ASSERT_EQ(bases.size(), static_cast<size_t>(n / kWindowTokens));
  std::fill_n(factor.begin() + 64, 64, uint8_t{0});  // of the second window no factor at all
  for (const float base : {0.0f, 3e-38f, -2.5f, 1000.0f, -4e7f}) {
    cpu::ScanArgs args;
    args.layout = &zone.codec->layout();
    args.planes = zone.segments[0];
    args.planes.factor = factor.data();
    args.planes.factor_base = bases.data();
    args.queries[0] = {&prepared, nullptr, base};
    args.end = n;
    std::vector<float> scores(n), window_bases(n / kWindowTokens);
    float *const to_scores = scores.data(), *const to_bases = window_bases.data();
    cpu::scalar::ScanScores(args, &to_scores, &to_bases);
    OnEveryTarget([&](const std::string& target) {
      Candidates found;
      for (auto* v : {&found.coarse, &found.base}) v->resize(n + 16);
      found.index.resize(n + 16);
      found.rows.resize((n + 16) * args.layout->coarse_bytes);
      Candidates* const to = &found;
      for (int i = 0; i < n; i += 7) {
        for (const float threshold : {scores[i], std::nextafter(scores[i], INFINITY)}) {
          found.size = 0;
          cpu::ScanAbove(args, &threshold, 0, &to);
          std::vector<uint32_t> want;
          for (int k = 0; k < n; ++k) {
            if (scores[k] >= threshold) want.push_back(static_cast<uint32_t>(k));
          }
          ASSERT_EQ(std::vector<uint32_t>(found.index.begin(), found.index.begin() + found.size), want)
              << target << " " << base << " " << threshold;
          for (size_t c = 0; c < want.size(); ++c) ASSERT_EQ(found.coarse[c], scores[want[c]]) << target;
        }
      }
    });
  }
}

// Whatever is scanned together, each query gets what it gets alone: both kinds of scan, and widths with and without a
// kernel of their own.
TEST(Ops, QueriesScannedTogetherGetWhatEachGetsAlone) {
  for (const int dim : {64, 96, 128}) {
    RsqOptions options;
    options.head_dim = dim;
    const int n = 1344;
    const Zone zone(Keys(n, dim, 41), dim, options, 2048);
    const CodeLayout& layout = zone.codec->layout();
    PreparedQuery prepared[cpu::kMostFused];
    std::vector<uint8_t> tiers[cpu::kMostFused];
    std::mt19937 rng(2);
    for (int q = 0; q < cpu::kMostFused; ++q) {
      zone.codec->PrepareQuery(Gaussian(dim, 42 + q).data(), &prepared[q]);
      tiers[q].resize(layout.coarse_bytes * 256);
      for (int i = 0; i < dim / 8 * 256; ++i) tiers[q][i] = static_cast<uint8_t>(rng() % 7);
    }
    const auto scan = [&](int first, int count, bool collision, std::vector<float>* scores, Candidates* found) {
      cpu::ScanArgs args;
      args.layout = &layout;
      args.planes = zone.segments[0];
      args.count = count;
      args.begin = 64;
      args.end = n;
      std::vector<float> bases[cpu::kMostFused];
      float *to_scores[cpu::kMostFused], *to_bases[cpu::kMostFused], thresholds[cpu::kMostFused];
      Candidates* to[cpu::kMostFused];
      for (int q = 0; q < count; ++q) {
        args.queries[q] = {&prepared[first + q], collision ? tiers[first + q].data() : nullptr, 0};
        scores[q].resize(n - 64);
        bases[q].resize(n / 64 - 1);
        to_scores[q] = scores[q].data();
        to_bases[q] = bases[q].data();
        found[q].index.resize(n + 16);
        found[q].coarse.resize(n + 16);
        found[q].base.resize(n + 16);
        found[q].rows.resize((n + 16) * layout.coarse_bytes);
        to[q] = &found[q];
      }
      cpu::ScanScores(args, to_scores, to_bases);
      for (int q = 0; q < count; ++q) {
        std::vector<float> sorted = scores[q];
        std::nth_element(sorted.begin(), sorted.begin() + sorted.size() * 9 / 10, sorted.end());
        thresholds[q] = sorted[sorted.size() * 9 / 10];
      }
      cpu::ScanAbove(args, thresholds, 0, to);
    };
    OnEveryTarget([&](const std::string& target) {
      for (const bool collision : {false, true}) {
        for (int count = 2; count <= cpu::kMostFused; ++count) {
          std::vector<float> together[cpu::kMostFused], alone;
          Candidates found[cpu::kMostFused], found_alone;
          scan(0, count, collision, together, found);
          for (int q = 0; q < count; ++q) {
            scan(q, 1, collision, &alone, &found_alone);
            EXPECT_EQ(together[q], alone) << target;
            ASSERT_EQ(found[q].size, found_alone.size) << target;
            ASSERT_GE(found[q].size, alone.size() / 10);
            for (size_t i = 0; i < found[q].size; ++i) {
              EXPECT_EQ(found[q].index[i], found_alone.index[i]);
              EXPECT_EQ(found[q].coarse[i], found_alone.coarse[i]);
              EXPECT_EQ(found[q].base[i], found_alone.base[i]);
            }
            EXPECT_TRUE(std::equal(found[q].rows.begin(), found[q].rows.begin() + found[q].size * layout.coarse_bytes,
                                   found_alone.rows.begin()));
            found_alone.size = 0;
          }
        }
      }
    });
  }
}

TEST(Ops, CollisionScanAddsTierWeights) {
  for (const int dim : {64, 80, 128, 256}) {
    RsqOptions options;
    options.head_dim = dim;
    options.centre = Centre::kNone;
    const int n = 640;
    const Zone zone(Keys(n, dim, 31), dim, options, 2048);
    PreparedQuery prepared;
    zone.codec->PrepareQuery(Gaussian(dim, 32).data(), &prepared);
    const CodeLayout& layout = zone.codec->layout();
    std::vector<uint8_t> tiers(layout.coarse_bytes * 256);
    std::mt19937 rng(1);
    for (int i = 0; i < dim / 8 * 256; ++i) tiers[i] = static_cast<uint8_t>(rng() % 7);
    cpu::ScanArgs args;
    args.layout = &layout;
    args.planes = zone.segments[0];
    args.queries[0] = {&prepared, tiers.data(), 0};
    args.end = n;
    std::vector<float> scores(n), bases(n / 64);
    float *const to_scores = scores.data(), *const to_bases = bases.data();
    std::vector<uint8_t> row(layout.coarse_bytes);
    OnEveryTarget([&](const std::string&) {
      cpu::ScanScores(args, &to_scores, &to_bases);
      for (int i = 0; i < n; ++i) {
        CopyCoarseRow(CoarseRowAt(args.planes.coarse, layout.coarse_bytes, i), layout.coarse_bytes, row.data());
        int want = 0;
        for (int b = 0; b < dim / 8; ++b) want += tiers[b * 256 + row[b]];
        ASSERT_EQ(scores[i], want);
      }
    });
  }
}

TEST(Ops, CountsAreAddedAndTakenBack) {
  RsqOptions options;
  options.head_dim = 80;
  const Zone zone(Keys(512, 80, 41), 80, options);
  std::vector<uint32_t> counts = zone.counts;
  uint64_t total = 0;
  for (const uint32_t c : counts) total += c;
  EXPECT_EQ(total, 512u * 10);
  cpu::CountCodes(zone.segments[0], zone.codec->layout(), 100, 512, -1, counts.data());
  std::vector<uint32_t> first(counts.size(), 0);
  cpu::CountCodes(zone.segments[0], zone.codec->layout(), 0, 100, 1, first.data());
  EXPECT_EQ(counts, first);
}

}  // namespace
}  // namespace seine
