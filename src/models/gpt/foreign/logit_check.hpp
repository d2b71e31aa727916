#pragma once
// Comparison of a model's logits with given ones.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/run/model_instance.hpp"
#include "src/models/gpt/gpt_config.hpp"
#include "src/store/npy.hpp"

namespace choir {

/// Logits [ids, vocabulary] of a prompt.
struct Logits {
  Shape shape;
  std::vector<double> values;
  bool in_f32 = true;  ///< false: they were computed in fp64
};

/// The logits of Generator::logits(); `values` is empty on ranks of other stages.
Logits logits_of(ModelInstance& instance, const std::vector<std::int32_t>& ids);
/// Local. Writes fp32, or fp64 if the logits were computed in it.
void write_logits(const std::string& path, const Logits& logits);

/// Parses "3,17,5". DeckError that begins with `what` for text that is not a list of ids of this
/// model.
std::vector<std::int32_t> parse_ids(const std::string& text, const GptConfig& config,
                                    const std::string& what);
/// The ids in an array of one dimension, with the same checks.
std::vector<std::int32_t> ids_of(const NpyArray& array, const GptConfig& config,
                                 const std::string& what);

/// Bound of the rounding errors of logits as large as `largest`: a unit in the last place for each
/// consecutive operation (eight per layer and two around them), times the root of the length of the
/// longest sum, in which errors are as often up as down.
double logit_tolerance(const GptConfig& config, double largest, bool in_f32);

struct LogitDifference {
  double largest = 0;    ///< of all differences
  std::int64_t row = 0;  ///< its position
  std::int64_t column = 0;
  double tolerance = 0;
  bool good() const { return largest <= tolerance; }
};
/// `tolerance` 0: logit_tolerance(). DataError if the shapes differ. NaN counts as an infinite
/// difference.
LogitDifference compare_logits(const GptConfig& config, const Logits& ours, const NpyArray& given,
                               double tolerance, const std::string& what);

}  // namespace choir
