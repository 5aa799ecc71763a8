"""The target `kubernetes`: a JobSet whose pods each have an agent, followed through `kubectl`.

manifest    a plan → the JobSet and what its pods need: pure
states      what `kubectl get` reports → what that means for the run: pure
kubectl     the program, and a transport to pods through it
watch       asks again and again; what `follow` waits for
target      starts, follows, finds again, stops
"""
