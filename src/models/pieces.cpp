#include "choir/models/pieces.hpp"

#include <algorithm>

#include "choir/core/error.hpp"

namespace choir {

ModelPieces::ModelPieces(const ModelCut& cut, std::int64_t layers)
    : units_(static_cast<int>(layers) + 2), ranges_(cut.pieces) {
  if (ranges_.empty()) ranges_.push_back({0, units_});
  int end = 0, count = 0;
  for (const UnitRange& range : ranges_) {
    CHOIR_CHECK(range.count > 0 && range.first >= end && range.end() <= units_,
                "units {} to {} of {} as a piece after unit {}", range.first, range.end(), units_,
                end);
    end = range.end();
    count += range.count;
    Piece piece{.input = range.first == 0, .head = end == units_};
    piece.first_unit = range.first;
    piece.last_unit = end - 1;
    pieces_.push_back(piece);
  }
  whole_ = count == units_;
}

const ModelPieces::Piece& ModelPieces::operator[](int index) const {
  CHOIR_CHECK(index >= 0 && index < count(), "piece {} of {}", index, count());
  return pieces_[static_cast<std::size_t>(index)];
}

bool ModelPieces::resident(int unit) const {
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [&](const UnitRange& range) { return range.contains(unit); });
}

}  // namespace choir
