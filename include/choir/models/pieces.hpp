#pragma once
// The part of a model that this rank holds: pieces of consecutive units (see
// choir/models/units.hpp).
#include <cstdint>
#include <vector>

#include "choir/models/units.hpp"

namespace choir {

/// A plain value. Local.
class ModelPieces {
 public:
  struct Piece {
    bool input = false, head = false;
    int first_unit = 0, last_unit = 0;
    bool contains(int unit) const { return unit >= first_unit && unit <= last_unit; }
  };
  /// Cuts a model of `layers` blocks. The ranges of the cut are in the order of the model.
  ModelPieces(const ModelCut& cut, std::int64_t layers);

  int count() const { return static_cast<int>(pieces_.size()); }
  const Piece& operator[](int index) const;
  bool resident(int unit) const;
  bool has_input() const { return resident(0); }
  bool has_head() const { return resident(units_ - 1); }
  /// True if the pieces cover the whole model.
  bool whole() const { return whole_; }

 private:
  int units_;
  std::vector<UnitRange> ranges_;
  std::vector<Piece> pieces_;
  bool whole_ = false;
};

}  // namespace choir
