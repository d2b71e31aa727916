#pragma once
// The table of model families of one program, and the keys of its decks, which follow from it.
// choir::run() makes one table, which is passed to everything that reads a deck; a deck refers to
// the table with which it was read.

#include <memory>
#include <string_view>
#include <vector>

#include "choir/core/key_table.hpp"
#include "choir/models/family.hpp"

namespace choir {

class FamilyTable {
 public:
  /// `families` are in the order of their names in messages, at least one; they must outlive the
  /// table. Throws Error if two of them have the same name. Local.
  explicit FamilyTable(std::vector<const ModelFamily*> families);
  ~FamilyTable();
  FamilyTable(const FamilyTable&) = delete;
  FamilyTable& operator=(const FamilyTable&) = delete;

  const std::vector<const ModelFamily*>& all() const { return families_; }
  /// Finds a family by the value of model.type; Error for an unknown name.
  const ModelFamily& named(std::string_view name) const;
  /// All keys of a deck, those of the families among them. They are bound to a Deck.
  const KeyTable<Deck>& keys() const { return *keys_; }

 private:
  std::vector<const ModelFamily*> families_;
  std::unique_ptr<const KeyTable<Deck>> keys_;
};

}  // namespace choir
