// Measures how good an answer is, given every logit of its head: recall, attention mass, and the recall that its codec
// predicted.
//
// Recall is the share of the exact set that was found. The exact set is what the same selector would choose from all
// logits of the zone: top_k or mass_p, per query head or by the group's reduction. Attention mass is the share of a
// query head's softmax over all tokens held that lies on what is attended: the set and the dense tokens. A shared
// set's is the mean over its group.
//
// Prediction: a codec that was made from a profile expects a share of its scores' variance to be noise
// (HeadCodec::noise). With v the variance of this head's logits within windows of 64, the scan's error has deviation
// sqrt(noise v). The exact logits and the number of candidates then tell where the scan cuts, and with which
// probability each key of the exact set comes above it; the rerank's cut follows likewise. Another model's profile
// expects less noise than there is, and what is found falls below the prediction. Not in the paper.
#ifndef SEINE_INDEX_QUALITY_JUDGE_H_
#define SEINE_INDEX_QUALITY_JUDGE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "index/quality/sample.h"

namespace seine {

struct SetQuality {
  double recall = 0;
  double attention_mass = 0;
  double lost = 0;                         // attention mass of the exact set, less that of the set found
  std::optional<double> predicted_recall;  // absent where the codec predicts none
};

// Shares of a query head's exact softmax over all tokens held, means over those that share the set.
struct SetWeights {
  double sink = 0, local = 0;  // tokens before the zone, and after it
  std::vector<float> found;    // beside QualitySample::Head::found
};

// Dot products as logits: times `scale` and, where `softcap` > 0, softcap tanh(. / softcap).
void ScaleLogits(float scale, float softcap, std::vector<float>* dots);

// `logits` [group][head.size], scaled; `group`: query heads of the KV head. One SetQuality a set found. std::bad_alloc.
std::vector<SetQuality> Judge(const QualitySample::Head& head, const SearchParams& params, int group,
                              const std::vector<float>& logits);
// The same arguments: where the attention of each set's query heads lies.
std::vector<SetWeights> Weigh(const QualitySample::Head& head, const SearchParams& params, int group,
                              const std::vector<float>& logits);

}  // namespace seine

#endif  // SEINE_INDEX_QUALITY_JUDGE_H_
