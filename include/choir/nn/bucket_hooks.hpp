#pragma once
// How a model borrows its parameters: it says when a bucket is needed and when its gradients are
// complete; what happens then (nothing, an all-reduce, a gather) is decided elsewhere. Every rank
// of a stage says the same in the same order, in every pass of every mode: that is what makes
// gathers collective.
namespace choir {

class BucketHooks {
 public:
  virtual ~BucketHooks() = default;
  /// The values of the bucket are about to be read (forward or backward).
  virtual void acquire(int bucket) { (void)bucket; }
  /// ... and are not needed until acquired again.
  virtual void release(int bucket) { (void)bucket; }
  /// The first contribution of this micro-batch to the gradients is about to be written.
  virtual void begin_gradients(int bucket) { (void)bucket; }
  /// This micro-batch adds nothing more to the gradients of the bucket.
  virtual void gradients_ready(int bucket) { (void)bucket; }
};

}  // namespace choir
