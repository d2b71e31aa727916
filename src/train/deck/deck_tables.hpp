#pragma once
// Private to the deck: its table, written in pieces, and the cross checks.
#include "choir/train/deck/deck.hpp"

namespace choir::deck {

using Table = KeyTable<Deck>;

void add_run_keys(Table& table);
void add_model_keys(Table& table);
void add_speech_keys(Table& table);
void add_data_keys(Table& table);
void add_speech_data_keys(Table& table);
void add_train_keys(Table& table);
void add_parallel_keys(Table& table);
void add_service_keys(Table& table);  // eval, checkpoint, log, fault, device
void add_fault_keys(Table& table);    // called by add_service_keys
void add_watch_keys(Table& table);
std::vector<ForeignKey> foreign_keys();

/// What no single key can show. Places are put in front by the caller.
std::vector<KeyProblem> check(const Deck& deck);
/// Keys of the kind of model that model.type does not name.
std::vector<KeyProblem> check_kind(const Deck& deck);
/// Of a speech model, parallel.tensor and parallel.context included.
std::vector<KeyProblem> check_speech(const Deck& deck);
/// Of data.* of speech.
std::vector<KeyProblem> check_speech_data(const Deck& deck);
/// Paths of the keys of add_speech_data_keys().
std::vector<std::string> speech_data_keys();
/// Shared keys that are not given show what a speech model has.
void show_speech(Deck& deck);
/// Of fault.*.
std::vector<KeyProblem> check_faults(const Deck& deck);
/// The part of it about parallel.*, which the number of ranks does not decide.
std::vector<KeyProblem> check_parallel(const Deck& deck);

}  // namespace choir::deck
