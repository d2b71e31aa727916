#pragma once
// Private to the deck: its table, written in pieces, and the cross checks.
#include "choir/deck/deck.hpp"

namespace choir::deck {

using Table = KeyTable<Deck>;

void add_run_keys(Table& table);
void add_model_keys(Table& table);
void add_data_keys(Table& table);
void add_train_keys(Table& table);
void add_optimizer_keys(Table& table);
void add_eval_keys(Table& table);
void add_parallel_keys(Table& table);
void add_service_keys(Table& table);  // checkpoint, log, fault, device
void add_fault_keys(Table& table);    // called by add_service_keys
void add_watch_keys(Table& table);
std::vector<ForeignKey> foreign_keys();
std::vector<ForeignKey> foreign_recipes();  // added by foreign_keys

/// What no single key can show. Places are put in front by the caller.
std::vector<KeyProblem> check(const Deck& deck);
/// All keys, each with its type and its limits.
const KeySet& keys();
/// Whether the table has it.
bool is_key(const std::string& key);
/// The path of the key that ends so, as "optimizer.learning_rate"; "" for none and for several.
std::string key_by_last_name(const std::string& last);
/// Whether adapters are trained, and all else is frozen.
bool has_adapters(const Deck& deck);
/// Whether runs of this family look at the key.
bool concerns(const ModelFamily& family, const std::string& key);
/// Whether only runs on GPUs look at the key.
bool is_for_cuda(const std::string& key);
/// Complaints about keys that the deck's family does not have, but others do.
std::vector<KeyProblem> check_family(const Deck& deck);
/// What is wrong with fault.*.
std::vector<KeyProblem> check_faults(const Deck& deck);
/// The part of it about parallel.*, which the number of ranks does not decide.
std::vector<KeyProblem> check_parallel(const Deck& deck);

}  // namespace choir::deck
