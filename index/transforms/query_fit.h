// How well a layer's balanced code fits the queries that it is asked, and query moments learnt from these.
//
// A code is made for query moments: it gives bits to the coordinates that such queries look at. What it expects of
// itself is the share of its scores' variance that is noise of the scanned plane, sum l_i^2 r_i / sum l_i^2 (l: lambda,
// r_i: what the leading bits leave of coordinate i). Queries from elsewhere find sum l_i m_i r_i / sum l_i m_i, m_i
// their own second moments. The *loss* is the second over the first, less 1: 0 where queries are as expected.
// Measured, SmolLM2-135M, a profile of other texts: between -.08 and .13 for every head of three layers; with
// another layer's or head's query moments .2 to 1.9.
#ifndef SEINE_INDEX_TRANSFORMS_QUERY_FIT_H_
#define SEINE_INDEX_TRANSFORMS_QUERY_FIT_H_

#include <cstdint>
#include <vector>

#include "index/config/config.h"
#include "index/transforms/transforms.h"

namespace seine {

// Queries as they were asked, after RoPE.
struct SeenQueries {
  std::vector<int64_t> positions;
  std::vector<float> rows;  // [positions][num_q_heads][head_dim]
};

// Share of the variance of each KV head's scores that is noise, were these queries asked at positions spread over
// [p, p + horizon] of the code: what the code's own prediction (HeadCodec::noise) supposes. 0 where all are zero.
std::vector<double> NoiseOf(const LayerCodecs& codecs, const SeenQueries& seen, const IndexConfig& config, int layer);

// NoiseOf over what the code expected, less 1.
std::vector<double> LossOf(const LayerCodecs& codecs, const std::vector<double>& noise);

// The moments of each KV head's queries, mixed with the profile's by n : head_dim, n vectors having been seen: few say
// little about so many directions. Both count by their shape alone, not by their size.
QueryMoments LearnMoments(const SeenQueries& seen, const IndexConfig& config, int layer);

}  // namespace seine

#endif  // SEINE_INDEX_TRANSFORMS_QUERY_FIT_H_
