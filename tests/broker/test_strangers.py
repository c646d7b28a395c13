from mainstem.broker.strangers import Strangers


class Client:
    def __init__(self, strangers, host):
        self.client_host = host
        self.is_cut_off = False
        strangers.come(self)

    def cut_off(self):
        self.is_cut_off = True


def test_the_oldest_of_the_address_that_has_most_gives_way_to_another_address():
    strangers = Strangers()
    few = [Client(strangers, "/10.0.0.1") for _ in range(2)]
    many = [Client(strangers, "/10.0.0.2") for _ in range(4)]
    assert strangers.make_room("/10.0.0.1")
    assert [each.is_cut_off for each in (*few, *many)] == [False, False, True, False, False, False]
    assert not strangers.make_room("/10.0.0.2"), "its own do not give way to it"
    assert not strangers.make_room("/10.0.0.1"), "it would have as many"


def test_who_is_known_or_gone_keeps_his_place():
    strangers = Strangers()
    known, _, gone = (Client(strangers, "/10.0.0.2") for _ in range(3))
    strangers.go(known)
    assert strangers.make_room("/10.0.0.1") is True
    assert not known.is_cut_off
    strangers.go(gone)
    strangers.go(gone)
    assert not strangers.make_room("/10.0.0.1")
