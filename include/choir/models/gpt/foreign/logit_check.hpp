#pragma once
// Logits of a model against given ones.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/infer/model_instance.hpp"
#include "choir/models/gpt/gpt_config.hpp"
#include "choir/store/npy.hpp"

namespace choir {

/// Logits [ids, vocabulary] of a prompt.
struct Logits {
  Shape shape;
  std::vector<double> values;
  bool in_f32 = true;  ///< false: they were computed in float64
};

/// As Generator::logits(); `values` is empty on ranks of other stages.
Logits logits_of(ModelInstance& instance, const std::vector<std::int32_t>& ids);
/// Local. In float32, or float64 where they were computed in it.
void write_logits(const std::string& path, const Logits& logits);

/// "3,17,5". DeckError that begins with `what` for what are no ids, or none of this model.
std::vector<std::int32_t> parse_ids(const std::string& text, const GptConfig& config,
                                    const std::string& what);
/// The same of an array of one dimension.
std::vector<std::int32_t> ids_of(const NpyArray& array, const GptConfig& config,
                                 const std::string& what);

/// What rounding may do to logits as large as `largest`: a unit in the last place of them for each
/// operation in a row (eight a layer and two around them), with the root of the longest sum in it,
/// in which errors are as often up as down.
double logit_tolerance(const GptConfig& config, double largest, bool in_f32);

struct LogitDifference {
  double largest = 0;    ///< of all differences
  std::int64_t row = 0;  ///< where it is
  std::int64_t column = 0;
  double tolerance = 0;
  bool good() const { return largest <= tolerance; }
};
/// `tolerance` 0: logit_tolerance(). DataError when the shapes differ. NaN is an infinite
/// difference.
LogitDifference compare_logits(const GptConfig& config, const Logits& ours, const NpyArray& given,
                               double tolerance, const std::string& what);

}  // namespace choir
