#include "choir/models/batch.hpp"

#include <algorithm>
#include <cstring>

#include "choir/core/error.hpp"

namespace choir {

void ModelBatch::add(const BatchField& field) {
  CHOIR_CHECK(count_ < kMostFields && find(field.name) == nullptr, "no room for field {} of {}",
              field.name, count_);
  fields_[count_++] = field;
}

const TensorView* ModelBatch::find(std::string_view name) const {
  for (const BatchField& field : fields())
    if (field.name == name) return &field.view;
  return nullptr;
}

const TensorView& ModelBatch::operator[](std::string_view name) const {
  const TensorView* const view = find(name);
  CHOIR_CHECK(view != nullptr, "this micro-batch has no field '{}'", name);
  return *view;
}

namespace {

/// Index of this rank's share of the rows or columns of a field, and the number of shares.
struct FieldShare {
  std::int64_t rank, ranks;
  FieldShare(const BatchField& field, const BatchRanks& all)
      : rank(all.context.rank()), ranks(all.context.size()) {
    if (field.shared != Shared::rows && field.shared != Shared::columns) return;
    rank = rank * all.tensor_ranks + all.tensor_rank;
    ranks *= all.tensor_ranks;
  }
};

}  // namespace

bool BatchRanks::share(const BatchField& field) const {
  return field.shared != Shared::nothing && FieldShare(field, *this).ranks > 1;
}

Shape share_shape(const ModelBatch& batch, const BatchField& field, const BatchRanks& ranks) {
  const std::int64_t parts = FieldShare(field, ranks).ranks;
  const auto share = [&](std::int64_t n) { return (n + parts - 1) / parts; };
  Shape shape = field.view.shape;
  if (field.shared == Shared::positions) {
    const std::int64_t rows = share_of_sequences(batch.samples, batch.tokens, ranks.context).rows();
    shape[0] = shape[0] / (batch.samples * batch.tokens) * rows;
    return shape;
  }
  if (field.shared == Shared::rows) shape[0] = share(shape[0]);
  if (field.shared == Shared::columns) shape[shape.rank() - 1] = share(shape.back());
  return shape;
}

void gather_resident(const Stream& stream, const ModelBatch& batch, const BatchField& field,
                     const BatchRanks& ranks, void* to) {
  const TensorView& view = field.view;
  const bool shared = ranks.share(field);
  if (shared && field.shared != Shared::positions)
    throw DeckError(fmt::format("data.preload = \"device\": ranks divide the {} of '{}'",
                                field.shared == Shared::rows ? "rows" : "columns", field.name),
                    "set data.preload to \"host\"");
  const std::int64_t rows = batch.samples, width = view.count() / rows;
  const std::size_t size = size_of(view.dtype);
  auto* const base = static_cast<std::byte*>(to);
  const auto bytes = [size](std::int64_t n) { return static_cast<std::size_t>(n) * size; };
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t count = field.resident_counts ? field.resident_counts[row] : width;
    if (!shared) {
      std::byte* const there = base + bytes(row * width);
      if (count > 0) stream.copy(there, field.resident[row], bytes(count));
      if (count < width) stream.zero(there + bytes(count), bytes(width - count));
      continue;
    }
    CHOIR_CHECK(count == width && width == batch.tokens, "a row of {} of {} positions", count,
                batch.tokens);
    std::int64_t before = 0;  // elements of the runs before this one
    for (int run = 0; run < ranks.context.runs(); ++run) {
      const PositionShare share = ranks.context.share(width, ranks.context.rank(), run);
      std::byte* const there = base + bytes(before + row * share.tokens);
      if (share.real > 0)
        stream.copy(there, field.resident[row] + bytes(share.first), bytes(share.real));
      if (share.real < share.tokens)
        stream.copy(there + bytes(share.real), field.resident_padding,
                    bytes(share.tokens - share.real));
      before += rows * share.tokens;
    }
  }
}

void copy_share(const ModelBatch& batch, const BatchField& field, const BatchRanks& ranks,
                void* to) {
  const Shape shape = share_shape(batch, field, ranks);
  const TensorView& from = field.view;
  if (field.shared == Shared::positions) {
    const ContextAxis& context = ranks.context;
    CHOIR_CHECK(size_of(from.dtype) == sizeof(std::int32_t), "positions of type {}",
                name_of(from.dtype));
    const std::int64_t each = from.count() / (batch.samples * batch.tokens);
    const std::int64_t rows = shape.count() / context.runs();
    for (int run = 0; run < context.runs(); ++run) {
      PositionShare share = context.share(batch.tokens, context.rank(), run);
      share.tokens *= each, share.first *= each, share.real *= each;
      cut_positions(
          {static_cast<const std::int32_t*>(from.data), static_cast<std::size_t>(from.count())},
          each * batch.tokens, share, field.padding,
          {static_cast<std::int32_t*>(to) + run * rows, static_cast<std::size_t>(rows)});
    }
    return;
  }
  // Contiguous runs: those of one row, or one run of all rows together.
  const bool columns = field.shared == Shared::columns;
  const std::int64_t runs = columns ? from.shape.rows() : 1;
  const std::int64_t whole = from.count() / runs, part = shape.count() / runs;
  const std::int64_t first = std::min(FieldShare(field, ranks).rank * part, whole);
  const std::size_t size = size_of(from.dtype);
  const auto bytes = [size](std::int64_t n) { return static_cast<std::size_t>(n) * size; };
  const std::size_t here = bytes(std::min(part, whole - first));
  for (std::int64_t run = 0; run < runs; ++run) {
    auto* const target = static_cast<std::byte*>(to) + bytes(run * part);
    std::memcpy(target, static_cast<const std::byte*>(from.data) + bytes(run * whole + first),
                here);
    std::memset(target + here, 0, bytes(part) - here);
  }
}

std::size_t padded_field_bytes(const TensorView& field) {
  constexpr std::size_t kAlignment = 64;
  return (field.bytes() + kAlignment - 1) / kAlignment * kAlignment;
}

std::size_t bytes_of_fields(const ModelBatch& batch) {
  std::size_t bytes = 0;
  for (const BatchField& field : batch.fields())
    if (field.view.shape.rank() > 0) bytes += padded_field_bytes(field.view);
  return bytes;
}

}  // namespace choir
