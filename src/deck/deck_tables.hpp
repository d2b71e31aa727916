#pragma once
// Private to the deck: its key table, which is written in parts, and the cross checks.
#include <set>
#include <string>
#include <vector>

#include "choir/deck/deck.hpp"

namespace choir::deck {

using Table = KeyTable<Deck>;

void add_run_keys(Table& table);
void add_model_keys(Table& table, const FamilyTable& families);
void add_data_keys(Table& table);
void add_train_keys(Table& table);
void add_optimizer_keys(Table& table);
void add_eval_keys(Table& table);
void add_parallel_keys(Table& table);
void add_service_keys(Table& table);  // checkpoint, log, fault, device; refers to the table
void add_fault_keys(Table& table);    // called by add_service_keys
void add_watch_keys(Table& table);
std::vector<ForeignKey> foreign_keys();
std::vector<ForeignKey> foreign_recipes();  // added by foreign_keys

/// Checks that concern several keys. The caller puts the origin of a value in front of each text.
std::vector<KeyProblem> check(const Deck& deck);
/// The full path of the key whose last part is `last` ("optimizer.learning_rate" for
/// "learning_rate"); "" if there is none or several.
std::string key_by_last_name(const KeySet& keys, const std::string& last);
/// True if adapters are trained and all other parameters are frozen.
bool has_adapters(const Deck& deck);
/// True if runs of this family of the table read the key.
bool concerns(const FamilyTable& table, const ModelFamily& family, const std::string& key);
/// The keys that are given but have no effect in this deck.
std::set<std::string> idle_keys(const Deck& deck);
/// True if only runs on GPUs read the key.
bool is_for_cuda(const std::string& key);
/// Problems with keys that the deck's family does not have but other families do.
std::vector<KeyProblem> check_family(const Deck& deck);
/// Checks of the keys fault.*.
std::vector<KeyProblem> check_faults(const Deck& deck);
/// Checks of the keys parallel.* that do not depend on the number of ranks.
std::vector<KeyProblem> check_parallel(const Deck& deck);

}  // namespace choir::deck
