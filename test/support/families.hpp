#pragma once
// The families of models that tests read decks with: those of choir.
#include "choir/deck/family_table.hpp"
#include "src/models/families.hpp"

namespace choir::test {

inline const FamilyTable& families() {
  static const FamilyTable table(built_in_families());
  return table;
}

}  // namespace choir::test
