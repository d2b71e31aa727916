// Matrices that bitsandbytes quantised, as matrices of reals: NF4 in blocks along the flattened
// matrix, whose scales may be quantised too, and int8 with a scale for each row.

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <unordered_set>
#include <utility>

#include "choir/core/error.hpp"
#include "src/core/json_value.hpp"
#include "src/store/safetensors/safetensors.hpp"

namespace choir {
namespace {

using nlohmann::json;

constexpr std::string_view kState = ".quant_state.bitsandbytes__", kByteWeight = ".weight",
                           kRowScales = ".SCB", kByteFormat = ".weight_format";
constexpr std::int64_t kLongestState = 65536;
constexpr std::int64_t kRead = 1 << 16;  // elements that are decoded at a time

/// A matrix of the file, as it is stored.
struct Stored {
  enum class Kind { plain, four_bits, byte_rows } kind = Kind::plain;
  std::string name;            ///< of the stored tensor
  std::int64_t per_scale = 1;  ///< elements that share a scale: a block, or a row
  std::array<float, 16> values{};
  std::vector<float> scale_values;  ///< of scales in one byte; empty: scales are f32
  std::int64_t scales_per_scale = 1;
  float scale_offset = 0;
};

class BitsAndBytesReader final : public TensorReader {
 public:
  explicit BitsAndBytesReader(std::unique_ptr<TensorReader> file)
      : TensorReader(file->path()), file_(std::move(file)) {
    std::unordered_set<std::string> parts;  // tensors that belong to a matrix
    std::vector<TensorEntry> entries;
    for (const TensorEntry& entry : file_->tensors())
      if (const std::size_t at = entry.name.find(kState); at != std::string::npos)
        add_four_bits(entry, at, entries, parts);
      else if (entry.name.ends_with(kRowScales))
        add_byte_rows(entry, entries, parts);
    for (const TensorEntry& entry : file_->tensors()) {
      if (parts.contains(entry.name)) continue;
      stored_.push_back({.name = entry.name});
      entries.push_back(entry);
    }
    set_tensors(std::move(entries));
  }

 private:
  [[noreturn]] void refuse(const std::string& name, const std::string& why) const {
    throw StorageError(fmt::format("the quantised tensor '{}' in '{}' {}", name, path(), why),
                       "it may be of another version of bitsandbytes: save the model in bf16");
  }

  /// Reads a whole vector of f32.
  std::vector<float> floats(const std::string& name, std::int64_t count,
                            const std::string& matrix) const {
    const TensorEntry* entry = file_->find(name);
    if (entry == nullptr || entry->encoding != Encoding::f32 || entry->shape.count() != count)
      refuse(matrix, fmt::format("needs {} numbers of F32 in '{}'", count, name));
    std::vector<float> all(static_cast<std::size_t>(count));
    file_->read(name, 0, count, all.data(), DType::f32);
    return all;
  }

  json state_of(const TensorEntry& entry, const std::string& matrix) const {
    if (entry.encoding != Encoding::u8 || entry.shape.count() > kLongestState)
      refuse(matrix, "has a description that is not a short text");
    std::string text(static_cast<std::size_t>(entry.shape.count()), '\0');
    file_->read(entry.name, 0, entry.shape.count(), text.data(), DType::u8);
    try {
      json state = read_json(text, fmt::format("'{}' in '{}'", entry.name, path()), {.depth = 8});
      if (!state.is_object()) refuse(matrix, "has a description that is not an object");
      return state;
    } catch (const JsonError& error) {
      throw StorageError(error.what(), "download it again");
    }
  }

  void add_four_bits(const TensorEntry& description, std::size_t name_end,
                     std::vector<TensorEntry>& entries, std::unordered_set<std::string>& parts) {
    const std::string name = description.name.substr(0, name_end);
    const json state = state_of(description, name);
    const auto whole = [&](const json& from, const char* what) {
      if (!from.is_number_integer() || from.get<std::int64_t>() < 1)
        refuse(name, fmt::format("has a {} that is not a positive number", what));
      return from.get<std::int64_t>();
    };
    const auto text = [&](const char* key) {
      return state.contains(key) && state[key].is_string() ? state[key].get<std::string>() : "";
    };
    if (const std::string type = text("quant_type"); type != "nf4")
      refuse(name, fmt::format("has the type '{}', of which only nf4 is read", type));
    Stored one{.kind = Stored::Kind::four_bits, .name = name};
    one.per_scale = whole(state.value("blocksize", json()), "blocksize");
    TensorEntry entry{.name = name, .encoding = result_type(name, text("dtype")), .shape = {}};
    std::vector<std::int64_t> extents;
    if (!state.contains("shape") || !state["shape"].is_array()) refuse(name, "has no shape");
    for (const json& extent : state["shape"]) extents.push_back(whole(extent, "shape"));
    entry.shape =
        checked_shape(extents, entry.encoding, fmt::format("tensor '{}' in '{}'", name, path()));
    const std::int64_t count = entry.shape.count(),
                       scales = (count + one.per_scale - 1) / one.per_scale;
    const TensorEntry& packed = file_->at(name);
    if (block_elements(packed.encoding) > 1 || packed.bytes() != (count + 1) / 2)
      refuse(name, fmt::format("has {} bytes for {} elements", packed.bytes(), count));
    const std::vector<float> values = floats(name + ".quant_map", 16, name);
    std::copy(values.begin(), values.end(), one.values.begin());
    const TensorEntry& absmax = file_->at(name + ".absmax");
    if (absmax.shape.count() != scales)
      refuse(name, fmt::format("has {} scales, not {}", absmax.shape.count(), scales));
    parts.insert({name, description.name, name + ".quant_map", absmax.name});
    if (absmax.encoding == Encoding::u8) {
      one.scales_per_scale = whole(state.value("nested_blocksize", json()), "nested_blocksize");
      if (!state.contains("nested_offset") || !state["nested_offset"].is_number())
        refuse(name, "has no nested_offset");
      one.scale_offset = state["nested_offset"].get<float>();
      one.scale_values = floats(name + ".nested_quant_map", 256, name);
      floats(name + ".nested_absmax", (scales + one.scales_per_scale - 1) / one.scales_per_scale,
             name);
      parts.insert({name + ".nested_quant_map", name + ".nested_absmax"});
    } else if (absmax.encoding != Encoding::f32) {
      refuse(name, fmt::format("has scales of {}", name_of(absmax.encoding)));
    }
    stored_.push_back(std::move(one));
    entries.push_back(std::move(entry));
  }

  Encoding result_type(const std::string& name, const std::string& dtype) const {
    for (const auto& [word, encoding] : {std::pair("float32", Encoding::f32),
                                         {"bfloat16", Encoding::bf16},
                                         {"float16", Encoding::f16}})
      if (dtype == word) return encoding;
    refuse(name, fmt::format("has the dtype '{}'", dtype));
  }

  void add_byte_rows(const TensorEntry& scales, std::vector<TensorEntry>& entries,
                     std::unordered_set<std::string>& parts) {
    const std::string stem = scales.name.substr(0, scales.name.size() - kRowScales.size());
    const std::string name = stem + std::string(kByteWeight);
    const TensorEntry& bytes = file_->at(name);
    if (bytes.encoding != Encoding::i8 || bytes.shape.rank() != 2)
      refuse(name, "is not a matrix of I8");
    floats(scales.name, bytes.shape[0], name);
    if (const TensorEntry* format = file_->find(stem + std::string(kByteFormat))) {
      std::int64_t layout = 0;
      file_->read(format->name, 0, 1, &layout, DType::i64);
      if (layout != 0) refuse(name, "has rows in the order of a device");
      parts.insert(format->name);
    }
    parts.insert({name, scales.name});
    stored_.push_back({.kind = Stored::Kind::byte_rows, .name = name, .per_scale = bytes.shape[1]});
    entries.push_back({name, Encoding::f32, bytes.shape});
  }

  /// The scales [first, first + count) of a matrix.
  std::vector<float> scales_of(const Stored& one, std::int64_t first, std::int64_t count) const {
    std::vector<float> scales(static_cast<std::size_t>(count));
    if (one.kind == Stored::Kind::byte_rows) {
      const std::string stem = one.name.substr(0, one.name.size() - kByteWeight.size());
      file_->read(stem + std::string(kRowScales), first, count, scales.data(), DType::f32);
      for (float& scale : scales) scale /= 127;
      return scales;
    }
    if (one.scale_values.empty()) {
      file_->read(one.name + ".absmax", first, count, scales.data(), DType::f32);
      return scales;
    }
    const std::int64_t outer = first / one.scales_per_scale,
                       outers = (first + count - 1) / one.scales_per_scale - outer + 1;
    std::vector<float> outer_scales(static_cast<std::size_t>(outers));
    file_->read(one.name + ".nested_absmax", outer, outers, outer_scales.data(), DType::f32);
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(count));
    file_->read(one.name + ".absmax", first, count, codes.data(), DType::u8);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      scales[at] =
          one.scale_values[codes[at]] *
          outer_scales[static_cast<std::size_t>((first + i) / one.scales_per_scale - outer)];
    }
    // A second loop, so that products are rounded before the sum, as in the package.
    for (float& scale : scales) scale += one.scale_offset;
    return scales;
  }

  void read_encoded(std::size_t index, std::int64_t first, std::int64_t count,
                    std::byte* to) const override {
    const Stored& one = stored_[index];
    const Encoding encoding = tensors()[index].encoding;
    if (one.kind == Stored::Kind::plain) return file_->read_stored(one.name, first, count, to);
    for (std::int64_t at = 0; at < count; at += kRead) {
      const std::vector<float> numbers = decoded(one, first + at, std::min(kRead, count - at));
      convert(reinterpret_cast<const std::byte*>(numbers.data()), Encoding::f32,
              to + encoded_bytes(encoding, at), encoding, std::ssize(numbers));
    }
  }

  std::vector<float> decoded(const Stored& one, std::int64_t first, std::int64_t count) const {
    const std::int64_t scale = first / one.per_scale;
    const std::vector<float> scales =
        scales_of(one, scale, (first + count - 1) / one.per_scale - scale + 1);
    const auto scale_at = [&](std::int64_t i) {
      return scales[static_cast<std::size_t>(i / one.per_scale - scale)];
    };
    std::vector<float> numbers(static_cast<std::size_t>(count));
    if (one.kind == Stored::Kind::byte_rows) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(count));
      file_->read_stored(one.name, first, count, bytes.data());
      for (std::int64_t i = 0; i < count; ++i) {
        const auto at = static_cast<std::size_t>(i);
        numbers[at] =
            static_cast<float>(std::to_integer<std::int8_t>(bytes[at])) * scale_at(first + i);
      }
      return numbers;
    }
    // Bytes hold two elements, the first one in the high half. Their tensor may have any type.
    const std::int64_t width = encoded_bytes(file_->at(one.name).encoding, 1),
                       from = first / 2 / width,
                       until = ((first + count + 1) / 2 + width - 1) / width;
    std::vector<std::byte> bytes(static_cast<std::size_t>((until - from) * width));
    file_->read_stored(one.name, from, until - from, bytes.data());
    for (std::int64_t i = first; i < first + count; ++i) {
      const auto both =
          std::to_integer<unsigned>(bytes[static_cast<std::size_t>(i / 2 - from * width)]);
      numbers[static_cast<std::size_t>(i - first)] =
          one.values[i % 2 == 0 ? both >> 4 : both & 15u] * scale_at(i);
    }
    return numbers;
  }

  std::unique_ptr<TensorReader> file_;
  std::vector<Stored> stored_;  // of the tensors
};

bool is_part(const TensorEntry& entry) {
  return entry.name.find(kState) != std::string::npos || entry.name.ends_with(kRowScales);
}

}  // namespace

std::unique_ptr<TensorReader> dequantised(std::unique_ptr<TensorReader> file) {
  const auto& tensors = file->tensors();
  if (std::none_of(tensors.begin(), tensors.end(), is_part)) return file;
  return std::make_unique<BitsAndBytesReader>(std::move(file));
}

}  // namespace choir
