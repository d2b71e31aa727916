#pragma once
// What TextUnits is over: one class for characters, one for SentencePiece models.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "choir/data/text/text_units.hpp"

namespace choir {

class UnitModel {
 public:
  virtual ~UnitModel() = default;
  virtual std::string_view kind() const = 0;
  virtual int vocab_size() const = 0;
  virtual std::uint64_t hash() const = 0;
  virtual std::string to_json() const = 0;
  virtual std::string sentencepiece_model() const = 0;
  virtual TextUnits::Encoded encode(std::string_view text) const = 0;
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
  virtual std::string piece(std::int32_t id) const = 0;
};

}  // namespace choir
