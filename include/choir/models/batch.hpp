#pragma once
// One micro-batch as a model reads it: named views of host or device memory. The family of the
// model defines the fields, their types and their shapes (ModelFamily::fields).
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "choir/nn/pass.hpp"
#include "choir/ops/step_control.hpp"

namespace choir {

/// The dimension of a field that the ranks of the context axis divide among themselves. Positions
/// are those of sequences, with K values of 32 bits each: [B*T], [B*T, K] or [B*T*K]. Rows and
/// columns are those of the field itself.
enum class Shared { nothing, positions, rows, columns };

struct BatchField {
  std::string_view name;  ///< a literal
  TensorView view;
  Shared shared = Shared::nothing;
  /// Fills the end of a sequence whose positions are not divided evenly. Rows and columns are
  /// padded with zeros.
  std::int32_t padding = 0;  ///< its bit pattern
  /// Device memory of every row of a field that data.preload = "device" holds there; `view` has
  /// only a type and a shape. nullptr: `view` has the contents.
  const std::byte* const* resident = nullptr;
  /// Elements of every row; zeros follow them. nullptr: all.
  const std::int32_t* resident_counts = nullptr;
  const std::byte* resident_padding = nullptr;  ///< device memory with a row of `padding`
};

class ModelBatch {
 public:
  static constexpr std::size_t kMostFields = 12;

  std::int64_t samples = 0;       ///< B: sequences or utterances; all share one padded length
  std::int64_t tokens = 0;        ///< T of whole sequences, where ranks can divide positions
  std::int64_t first_sample = 0;  ///< global index of the first sample, where they are consecutive
  /// Device scalar added to first_sample; nullptr: 0.
  const std::int64_t* first_sample_on_device = nullptr;
  /// Per term of the loss: targets that were announced for this micro-batch but are not in it,
  /// because rows turned out to be damaged (ModelFamily::drops_rows).
  std::array<double, ops::kMostLossTerms> dropped{};
  double scale = 1;  ///< factor of the sums of losses whose gradient backward computes
  /// Device scalars that are multiplied by `scale`, one for each term of the loss; nullptr: 1.
  const double* device_scales = nullptr;
  const double* device_scale(std::size_t term = 0) const {
    return device_scales == nullptr ? nullptr : device_scales + term;
  }

  /// Appends a field. Its name must be new.
  void add(const BatchField& field);
  std::span<BatchField> fields() { return {fields_.data(), count_}; }
  std::span<const BatchField> fields() const { return {fields_.data(), count_}; }
  /// Returns nullptr if there is no such field.
  const TensorView* find(std::string_view name) const;
  /// Throws Error if there is no such field.
  const TensorView& operator[](std::string_view name) const;
  TensorView& operator[](std::string_view name) {
    return const_cast<TensorView&>(std::as_const(*this)[name]);
  }

 private:
  std::array<BatchField, kMostFields> fields_{};
  std::size_t count_ = 0;
};

/// The ranks that divide the fields of a micro-batch: those of the context axis and, for rows and
/// columns only, those of the tensor axis.
struct BatchRanks {
  ContextAxis context;
  int tensor_rank = 0, tensor_ranks = 1;

  /// True if each rank has a different part of this field.
  bool share(const BatchField& field) const;
};

/// The shape of a rank's share of a field, and a copy of the share from host memory to host memory.
/// Positions are in the order of the rows of share_of_sequences(). The rows and columns of the
/// tensor ranks of one context rank are adjacent.
Shape share_shape(const ModelBatch& batch, const BatchField& field, const BatchRanks& ranks);
void copy_share(const ModelBatch& batch, const BatchField& field, const BatchRanks& ranks,
                void* to);
/// Queues copies of a field with resident rows, or of a rank's share of its positions, to `to` in
/// device memory. Throws DeckError for a share of rows or columns.
void gather_resident(const Stream& stream, const ModelBatch& batch, const BatchField& field,
                     const BatchRanks& ranks, void* to);

/// Upper bound of a micro-batch in the extents that families have. Memory is planned for it.
struct BatchShape {
  std::int64_t samples = 0;        ///< B
  std::int64_t tokens = 0;         ///< T of token sequences
  std::int64_t audio_samples = 0;  ///< S of audio
  std::int64_t labels = 0;         ///< U of transcripts
  std::int64_t clips = 0;          ///< N clips of audio among tokens
};

/// Bytes of one field of a batch with the gap after it: each field begins at a multiple of 64.
std::size_t padded_field_bytes(const TensorView& field);
/// Bytes of all fields, one after another. The views need no memory.
std::size_t bytes_of_fields(const ModelBatch& batch);

}  // namespace choir
