#include "threads/pool.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <stdexcept>
#include <string>
#include <system_error>

namespace edge_infer {
namespace {

// About 20 us inside a step: longer than any imbalance of a decode region. Between
// steps workers wait about 200 us, the time the caller needs to sample and schedule.
constexpr int kBarrierSpins = 1000;
constexpr int kIdleSpins = 10000;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

cpu_set_t one_cpu(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(cpu), &set);
  return set;
}

void pin(std::thread& thread, int cpu) {
  const cpu_set_t set = one_cpu(cpu);
  const int error = pthread_setaffinity_np(thread.native_handle(), sizeof(set), &set);
  if (error != 0) {
    throw std::system_error(error, std::generic_category(),
                            "cannot pin a thread to CPU " + std::to_string(cpu));
  }
}

// Pins the calling thread for its lifetime; restores the caller's mask afterwards.
class ScopedPin {
 public:
  explicit ScopedPin(int cpu) {
    if (cpu < 0) return;
    saved_ = pthread_getaffinity_np(pthread_self(), sizeof(mask_), &mask_) == 0;
    const cpu_set_t set = one_cpu(cpu);
    if (saved_) pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
  }
  ~ScopedPin() {
    if (saved_) pthread_setaffinity_np(pthread_self(), sizeof(mask_), &mask_);
  }
  ScopedPin(const ScopedPin&) = delete;
  ScopedPin& operator=(const ScopedPin&) = delete;

 private:
  cpu_set_t mask_;
  bool saved_ = false;
};

}  // namespace

uint32_t spin_then_park(const std::atomic<uint32_t>& value, uint32_t old, int spins) {
  for (int i = 0; i < spins; ++i) {
    const uint32_t now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    relax();
  }
  uint32_t now = value.load(std::memory_order_acquire);
  while (now == old) {
    value.wait(old, std::memory_order_acquire);
    now = value.load(std::memory_order_acquire);
  }
  return now;
}

void Barrier::wait() {
  if (threads_ == 1) return;
  const uint32_t phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    phase_.notify_all();
  } else {
    spin_then_park(phase_, phase, kBarrierSpins);
  }
}

ThreadPool::ThreadPool(int threads, std::vector<int> cpus)
    : threads_(threads), cpus_(std::move(cpus)), barrier_(threads), owner_(getpid()) {
  if (threads < 1 || threads > 1024) {
    throw std::invalid_argument("threads must be between 1 and 1024, not " +
                                std::to_string(threads));
  }
  if (!cpus_.empty() && cpus_.size() != static_cast<size_t>(threads)) {
    throw std::invalid_argument("cpus must name one CPU per thread: got " +
                                std::to_string(cpus_.size()) + " for " + std::to_string(threads));
  }
  for (int cpu : cpus_) {
    if (cpu < 0 || cpu >= CPU_SETSIZE) {
      throw std::invalid_argument("cpus: no CPU " + std::to_string(cpu));
    }
  }
  workers_.reserve(static_cast<size_t>(threads - 1));
  try {
    for (int t = 1; t < threads; ++t) {
      workers_.emplace_back(&ThreadPool::worker, this, t);
      if (!cpus_.empty()) pin(workers_.back(), cpus_[static_cast<size_t>(t)]);
    }
  } catch (...) {
    stop_and_join();
    throw;
  }
}

ThreadPool::~ThreadPool() {
  if (getpid() == owner_) {
    stop_and_join();
  } else {
    for (std::thread& w : workers_) w.detach();
  }
}

void ThreadPool::stop_and_join() {
  stop_.store(true);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& w : workers_) w.join();
}

void ThreadPool::run(Fn fn, void* context) {
  if (getpid() != owner_) {
    throw std::runtime_error("the threads of a model do not survive a fork: load it in the child");
  }
  while (busy_.test_and_set(std::memory_order_acquire)) busy_.wait(true);
  {
    const ScopedPin pin(cpus_.empty() ? -1 : cpus_[0]);
    fn_ = fn;
    context_ = context;
    done_.store(0, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
    fn(context, 0);
    const uint32_t workers = static_cast<uint32_t>(threads_ - 1);
    uint32_t done = done_.load(std::memory_order_acquire);
    while (done != workers) done = spin_then_park(done_, done, kBarrierSpins);
  }
  busy_.clear(std::memory_order_release);
  busy_.notify_one();
}

void ThreadPool::worker(int thread) {
  uint32_t seen = 0;
  for (;;) {
    seen = spin_then_park(generation_, seen, kIdleSpins);
    if (stop_.load(std::memory_order_acquire)) return;
    fn_(context_, thread);
    done_.fetch_add(1, std::memory_order_release);
    done_.notify_one();
  }
}

}  // namespace edge_infer
