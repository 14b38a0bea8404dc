// Package gate is a gate as a whole: its configuration, its paths, its approvers, and what a
// request must satisfy.
//
// It guarantees that a request is admitted, withdrawn, used and ended only against the exact head
// of the log (the decision is made inside the critical section that appends it), that what a
// person will be shown is on disk before the record that names it, and that of any number of
// processes that create or use one key exactly one does.
//
// It does not decide: a grant or a rejection is no operation of this package, so that nothing on
// the agents' side can reach one. It does not deliver either, and it speaks to nobody over a network.
package gate
