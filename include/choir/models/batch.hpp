#pragma once
// One micro-batch as a model reads it: named views of host or device memory. Which fields there
// are, their types and shapes, is for the family of the model to say (ModelFamily::fields).
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "choir/core/tensor.hpp"
#include "choir/nn/pass.hpp"

namespace choir {

/// What of a field ranks of the context axis share. Positions are those of sequences, K values of
/// 32 bits for each, [B*T] or [B*T, K] or [B*T*K]; rows and columns are those of the field itself.
enum class Shared { nothing, positions, rows, columns };

struct BatchField {
  std::string_view name;  ///< a literal
  TensorView view;
  Shared shared = Shared::nothing;
  /// Stands behind the end of a sequence whose positions are not shared evenly; behind rows and
  /// columns stand zeros.
  std::int32_t padding = 0;  ///< the bits of it
};

class ModelBatch {
 public:
  static constexpr std::size_t kMostFields = 12;

  std::int64_t samples = 0;       ///< B: sequences or utterances; all share one padded length
  std::int64_t tokens = 0;        ///< T of whole sequences, where ranks can share positions
  std::int64_t first_sample = 0;  ///< global index of the first, where they are consecutive
  /// Device scalar added to first_sample; nullptr: 0.
  const std::int64_t* first_sample_on_device = nullptr;
  double scale = 1;  ///< of the sums of losses whose gradient backward prepares
  /// Device scalars that multiply it, one for each term of the loss; nullptr: 1.
  const double* device_scales = nullptr;
  const double* device_scale(std::size_t term = 0) const {
    return device_scales == nullptr ? nullptr : device_scales + term;
  }

  /// Appends a field, whose name is new.
  void add(const BatchField& field);
  std::span<BatchField> fields() { return {fields_.data(), count_}; }
  std::span<const BatchField> fields() const { return {fields_.data(), count_}; }
  /// nullptr if there is no such field.
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

/// Who shares the fields of a micro-batch: ranks of the context axis, and, rows and columns alone,
/// of the tensor axis.
struct BatchRanks {
  ContextAxis context;
  int tensor_rank = 0, tensor_ranks = 1;

  /// Each has other parts of this field.
  bool share(const BatchField& field) const;
};

/// The shape of a rank's share of a field, and the share itself, from host memory into host memory.
/// Positions lie in the order of rows of share_of_sequences(); rows and columns of the tensor ranks
/// of one context rank stand together.
Shape share_shape(const ModelBatch& batch, const BatchField& field, const BatchRanks& ranks);
void copy_share(const ModelBatch& batch, const BatchField& field, const BatchRanks& ranks,
                void* to);

/// How large a micro-batch is at most, by the extents that families have: memory is planned for it.
struct BatchShape {
  std::int64_t samples = 0;        ///< B
  std::int64_t tokens = 0;         ///< T, of sequences of tokens
  std::int64_t audio_samples = 0;  ///< S, of audio
  std::int64_t labels = 0;         ///< U, of transcripts
  std::int64_t clips = 0;          ///< N, of audio among tokens
};

/// Bytes of one field of a batch with the gap behind it: each begins at a multiple of 64.
std::size_t padded_field_bytes(const TensorView& field);
/// Bytes of all fields one after another. Views need not have memory.
std::size_t bytes_of_fields(const ModelBatch& batch);

}  // namespace choir
