// Package rehearse runs somebody's agent or script against a throw-away gate, with a script in the approver's place, and says whether it did
// as it should: asked, waited, went on after a yes and only then.
//
// It guarantees that the program reaches no other gate through the approvald that it finds (gate.RehearsalVariable), that nothing leaves
// this machine on approvald's part, and that a doubt counts against the program: what nobody can tell is not a pass.
//
// It cannot see what a program does apart from approvald. A risky action is seen when it is run by `approvald run`, when its command is
// named (Options.Actions: a stand-in records the call and does nothing), or when a file that it makes or changes is named
// (Options.Evidence). What is not named is really done.
package rehearse
