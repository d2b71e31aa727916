#pragma once
// AdamW as an update rule, for whole buckets or for the ranges of them that another rule leaves to
// it; and the element numbers that random bits are drawn with.

#include <cstdint>
#include <vector>

#include "kernels/update/adamw.hpp"
#include "src/optim/update_rule.hpp"

namespace choir {

const UpdateRule& adamw_rule();

/// Maps some elements of a bucket to their numbers in the model, which are the same in every layout
/// and index the random numbers of the elements. A rank that holds a part of a tensor, or of a
/// bucket, therefore draws the same numbers for its elements as a single rank with the whole model
/// would.
struct ElementSpan {
  Range local;  ///< elements of the bucket as this rank holds it
  ops::ElementNumbers elements;
};

/// The spans of a placed bucket in order, as few as possible: one if each tensor is whole,
/// otherwise about one per tensor. Elements in no span are padding.
std::vector<ElementSpan> element_spans(const Bucket& bucket);

/// The key of the random bits that round bf16 moments. It differs from that of masters, so that the
/// two never use the same bits.
PhiloxKey moment_rounding_key(std::uint64_t seed);

/// AdamW with the states {m, v}. Weight decay applies to the decayed range of each bucket.
class AdamWUpdater final : public Updater {
 public:
  explicit AdamWUpdater(const UpdateContext& context);
  void update(const Stream& stream, const ops::StepControl* control,
              const UpdatePart& part) override;
  /// The same for the elements of the part that are in `range` of its bucket.
  void update_range(const Stream& stream, const ops::StepControl* control, const UpdatePart& part,
                    const Range& range) const;

 private:
  std::size_t index_of(const Bucket& bucket) const;

  const ParameterStorage* storage_;
  const UpdateSettings* settings_;
  PhiloxKey rounding_, moment_rounding_;
  std::vector<std::vector<ElementSpan>> spans_;   // by bucket
  std::vector<std::vector<ScaledRange>> scales_;  // by bucket; without gaps
};

}  // namespace choir
